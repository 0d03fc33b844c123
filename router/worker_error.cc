#include "router/worker_error.h"

#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"

namespace baton::router {
namespace {

absl::Status Internal() {
  return MakeError(absl::StatusCode::kInternal, "WORKER_FAILED",
                   "a worker failed on this request; the router's log says why");
}

absl::Status Lost(absl::string_view reason) {
  return WithRetryAfter(
      MakeError(absl::StatusCode::kUnavailable, reason, "the request's worker was lost"),
      absl::Seconds(1));
}

}  // namespace

absl::Status FromWorker(const grpc::Status& status) {
  // The worker closed the stream in order, yet said neither STOP nor LENGTH.
  if (status.ok()) return Internal();
  absl::Status error = FromGrpcStatus(status);
  const std::string reason = ErrorReason(error);
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kNotFound:
      return error;
    case absl::StatusCode::kDeadlineExceeded:
      return MakeError(error.code(), reason.empty() ? "DEADLINE_EXCEEDED" : reason,
                       "the request's deadline passed before its last token");
    case absl::StatusCode::kUnavailable:
      // Without a reason it is the transport that speaks, of addresses that are no client's
      // business.
      return reason.empty() ? Lost("WORKER_LOST") : error;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      // A worker that restarted, or one that gives up on what it runs because it is stopping.
      return Lost(reason.empty() ? "WORKER_LOST" : reason);
    default:
      return Internal();
  }
}

bool AnotherPairMayDo(const absl::Status& error) { return absl::IsUnavailable(error); }

}  // namespace baton::router
