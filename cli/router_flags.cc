#include "cli/router_flags.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"

namespace baton::cli {

void AddRouterAccess(CLI::App* app, RouterAccess* access) {
  // Other users of the machine can read a command line, so the variable is better. --help does not
  // show its value.
  app->add_option("--api-key", access->api_key, "API key; better in BATON_API_KEY")
      ->envname("BATON_API_KEY")
      ->always_capture_default(false)
      ->default_str("");
  ChannelTls& tls = access->tls;
  app->add_flag("--tls", tls.enabled, "Call the router by TLS, with the CAs of the system");
  app->add_option("--tls-ca", tls.ca,
                  "PEM file of the CAs of the router's certificate; turns TLS on");
  app->add_option("--tls-cert", tls.cert, "PEM file of the client's certificate");
  app->add_option("--tls-key", tls.key, "PEM file of its private key");
  app->add_option("--tls-server-name", tls.server_name,
                  "Name that the router's certificate must have; empty: the host of --address");
}

client::ClientOptions ClientOptionsFor(const RouterAccess& access, absl::Duration timeout) {
  client::ClientOptions options;
  options.timeout = timeout;
  options.api_key = access.api_key;
  options.tls = {access.tls.enabled, access.tls.ca, access.tls.cert, access.tls.key,
                 access.tls.server_name};
  return options;
}

ChannelSecurity SecurityFor(const RouterAccess& access) {
  if (access.api_key.empty()) return MakeChannelSecurity(access.tls, nullptr);
  const CallHeaders headers = {{"authorization", absl::StrCat("Bearer ", access.api_key)}};
  return MakeChannelSecurity(access.tls, [headers] { return headers; });
}

}  // namespace baton::cli
