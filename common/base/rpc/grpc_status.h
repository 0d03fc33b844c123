// absl::Status to grpc::Status and back, in one place. The reason, field and retry time of
// base/error.h travel as google.rpc.ErrorInfo (domain "baton"), BadRequest and RetryInfo.
#ifndef BATON_COMMON_BASE_RPC_GRPC_STATUS_H_
#define BATON_COMMON_BASE_RPC_GRPC_STATUS_H_

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace baton {

grpc::Status ToGrpcStatus(const absl::Status& status);

// Details that do not parse are dropped: the code and the message stay.
absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace baton

#endif  // BATON_COMMON_BASE_RPC_GRPC_STATUS_H_
