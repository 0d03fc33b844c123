#include "cli/router_flags.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "common/base/rpc/client_channel.h"
#include "common/base/status_macros.h"
#include "common/security/tls_check.h"

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

absl::StatusOr<std::unique_ptr<client::Client>> RouterClient(const std::string& address,
                                                             const RouterAccess& access,
                                                             client::ClientOptions options) {
  BATON_RETURN_IF_ERROR(security::CheckTls(access.tls));
  options.api_key = access.api_key;
  options.tls = {access.tls.enabled, access.tls.ca, access.tls.cert, access.tls.key,
                 access.tls.server_name};
  return client::Client::Create(address, options);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> RouterChannel(const std::string& address,
                                                             const RouterAccess& access) {
  BATON_RETURN_IF_ERROR(security::CheckTls(access.tls));
  return MakeClientChannel(address, access.tls, access.api_key);
}

}  // namespace baton::cli
