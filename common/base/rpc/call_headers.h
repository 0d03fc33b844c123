// Reads the metadata that a client has sent with its call.
#ifndef BATON_COMMON_BASE_RPC_CALL_HEADERS_H_
#define BATON_COMMON_BASE_RPC_CALL_HEADERS_H_

#include <grpcpp/server_context.h>

#include "absl/strings/string_view.h"

namespace baton {

// Empty if the call lacks it, or has it twice. Valid as long as the context.
inline absl::string_view CallHeader(const grpc::ServerContextBase& context,
                                    absl::string_view name) {
  const auto& all = context.client_metadata();
  const grpc::string_ref key(name.data(), name.size());
  const auto found = all.find(key);
  if (found == all.end() || all.count(key) != 1) return {};
  return {found->second.data(), found->second.size()};
}

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_CALL_HEADERS_H_
