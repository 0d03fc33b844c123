// Converts absl::Status to grpc::Status and back. The payloads of base/error.h become error
// details: the reason google.rpc.ErrorInfo (domain "baton"), the field BadRequest, the retry time
// RetryInfo.
#ifndef BATON_COMMON_BASE_RPC_GRPC_STATUS_H_
#define BATON_COMMON_BASE_RPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace baton {

// Clips the message to 2 KiB of valid UTF-8.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Drops details that do not parse; code and message remain.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_GRPC_STATUS_H_
