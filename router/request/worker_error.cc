#include "router/request/worker_error.h"

#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"

namespace baton::router {
namespace {

// Clients get this time to retry where the worker gives none.
constexpr absl::Duration kDefaultRetryAfter = absl::Seconds(1);

absl::Status Internal() {
  return MakeError(absl::StatusCode::kInternal, "WORKER_FAILED",
                   "a worker failed on this request; the router's log says why");
}

// What a worker says of itself or of other workers names their addresses: clients get this instead.
absl::Status Unavailable(absl::string_view reason, const absl::Status& error) {
  absl::string_view message = "the request's workers could not serve it";
  if (reason == "DRAINING") message = "the request's worker takes no new requests";
  if (reason == "PREFILL_LOST") message = "the request's prefill worker was lost";
  return WithRetryAfter(MakeError(absl::StatusCode::kUnavailable, reason, message),
                        ErrorRetryAfter(error).value_or(kDefaultRetryAfter));
}

}  // namespace

absl::Status LostWorker(absl::string_view reason) {
  return WithRetryAfter(
      MakeError(absl::StatusCode::kUnavailable, reason, "the request's worker was lost"),
      kDefaultRetryAfter);
}

absl::Status DeadlinePassed() {
  return MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                   "the request's deadline passed before its last token");
}

absl::Status FromWorker(const grpc::Status& status) {
  // The worker closed the stream in order, yet said neither STOP nor LENGTH.
  if (status.ok()) return Internal();
  absl::Status error = FromGrpcStatus(status);
  const std::string reason = ErrorReason(error);
  switch (error.code()) {
    case absl::StatusCode::kUnimplemented:
      // gRPC says so for a worker of an older release, which lacks the method.
      return reason.empty() ? LostWorker("WORKER_OUTDATED") : error;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return reason.empty() ? Internal() : error;
    case absl::StatusCode::kResourceExhausted:
      // An error without a reason comes from the transport, as below.
      if (reason.empty()) {
        return absl::ResourceExhaustedError("a worker has no room for the request");
      }
      // Workers say when to come again; every refusal of a full worker reaches the client with it.
      return IsRefusal(error) && !ErrorRetryAfter(error) ? WithRetryAfter(error, kDefaultRetryAfter)
                                                         : error;
    case absl::StatusCode::kDeadlineExceeded:
      return MakeError(error.code(), reason.empty() ? "DEADLINE_EXCEEDED" : reason,
                       "the request's deadline passed before its last token");
    case absl::StatusCode::kUnavailable:
      // Without a reason it is the transport that speaks, of addresses that are no client's
      // business.
      return reason.empty() ? LostWorker("WORKER_LOST") : Unavailable(reason, error);
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
      return LostWorker("WORKER_REFUSED");
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
      // A worker that restarted, or one that gives up on what it runs because it is stopping.
      return LostWorker(reason.empty() ? "WORKER_LOST" : reason);
    case absl::StatusCode::kInternal:
      // Workers give a reason: without one, it is a broken connection, such as a stream reset.
      return reason.empty() ? LostWorker("WORKER_LOST") : Internal();
    default:
      return Internal();
  }
}

bool IsSilence(const absl::Status& error) {
  const std::string reason = ErrorReason(error);
  return reason == "WORKER_STALLED" || reason == "WORKER_EXPIRED" || reason == "WORKER_SUSPECT" ||
         reason == "PREFILL_SUSPECT";
}

bool IsRefusal(const absl::Status& error) {
  if (!absl::IsResourceExhausted(error)) return false;
  // What can never fit is the request's own fault.
  const std::string reason = ErrorReason(error);
  return reason != "KV_POOL_TOO_SMALL" && reason != "TOO_MANY_CHOICES";
}

bool IsLoss(const absl::Status& error) {
  return !IsRefusal(error) && ErrorReason(error) != "DRAINING";
}

bool AnotherPairMayDo(const absl::Status& error, bool begun) {
  // A tenant over its limit is not to be helped around it, nor out of the others' retries.
  if (!begun && ErrorReason(error) == "TENANT_LIMIT") return false;
  return absl::IsUnavailable(error) || IsRefusal(error);
}

Blame BlameFor(const absl::Status& error) {
  if (!absl::IsUnavailable(error)) return Blame::kNone;
  const std::string reason = ErrorReason(error);
  // The roster learns of these from the workers themselves.
  for (const absl::string_view learned :
       {"DRAINING", "STALE_EPOCH", "WORKER_EXPIRED", "WORKER_SUSPECT", "PREFILL_SUSPECT"}) {
    if (reason == learned) return Blame::kNone;
  }
  if (reason == "WORKER_LOST" || reason == "WORKER_STALLED" || reason == "WORKER_REFUSED") {
    return Blame::kAnswers;
  }
  return Blame::kPair;
}

}  // namespace baton::router
