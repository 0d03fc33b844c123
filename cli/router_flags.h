// The flags of commands that call a router: its address, and how to be let in.
#ifndef BATON_CLI_ROUTER_FLAGS_H_
#define BATON_CLI_ROUTER_FLAGS_H_

#include <string>

#include "absl/time/time.h"
#include "client/cpp/client.h"
#include "common/base/rpc/channel.h"
#include "common/base/tls_files.h"

namespace CLI {
class App;
}

namespace baton::cli {

struct RouterAccess {
  std::string api_key;
  ChannelTls tls;
};

// --api-key, --tls, --tls-ca, --tls-cert, --tls-key, --tls-server-name.
void AddRouterAccess(CLI::App* app, RouterAccess* access);

// For the C++ client, and for channels without it.
client::ClientOptions ClientOptionsFor(const RouterAccess& access, absl::Duration timeout);
ChannelSecurity SecurityFor(const RouterAccess& access);

}  // namespace baton::cli

#endif  // BATON_CLI_ROUTER_FLAGS_H_
