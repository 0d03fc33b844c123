// The flags of commands that call a router: its address, and how to be let in.
#ifndef BATON_CLI_ROUTER_FLAGS_H_
#define BATON_CLI_ROUTER_FLAGS_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"
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

// The C++ client, with `access` in its options, and a channel without it. INVALID_ARGUMENT, as of
// MakeClientChannel and security::CheckTls, for flags that no router can accept.
absl::StatusOr<std::unique_ptr<client::Client>> RouterClient(const std::string& address,
                                                             const RouterAccess& access,
                                                             client::ClientOptions options);
absl::StatusOr<std::shared_ptr<grpc::Channel>> RouterChannel(const std::string& address,
                                                             const RouterAccess& access);

}  // namespace baton::cli

#endif  // BATON_CLI_ROUTER_FLAGS_H_
