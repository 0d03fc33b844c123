// The channel of a client to a router, made of what a person wrote.
#ifndef BATON_COMMON_BASE_RPC_CLIENT_CHANNEL_H_
#define BATON_COMMON_BASE_RPC_CLIENT_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/rpc/channel.h"
#include "common/base/tls_files.h"

namespace baton {

// Makes a channel as MakeChannel does, with kClientChannel. Each call carries the key, unless it is
// empty, and the headers. gRPC would end the process, or answer much later, where this returns
// INVALID_ARGUMENT: BAD_ADDRESS unless `address` is host:port or has a scheme, BAD_TLS_FILES, or
// BAD_HEADER for what no header can carry. The message does not have the key.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeClientChannel(const std::string& address,
                                                                 const ChannelTls& tls,
                                                                 const std::string& api_key,
                                                                 CallHeaders headers = {});

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_CLIENT_CHANNEL_H_
