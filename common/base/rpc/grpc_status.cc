#include "common/base/rpc/grpc_status.h"

#include "absl/time/time.h"
#include "common/base/error.h"
#include "common/base/utf8.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace baton {
namespace {

constexpr char kDomain[] = "baton";
// HTTP/2 limits the size of trailers: a longer message would lose the whole status. So would
// invalid UTF-8, which text from a client or the operating system may contain.
constexpr size_t kMaxStatusTextBytes = 2048;

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const auto code = static_cast<grpc::StatusCode>(status.code());
  const std::string message = ClipToUtf8(status.message(), kMaxStatusTextBytes);
  google::rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(message);
  if (std::string reason = ErrorReason(status); !reason.empty()) {
    google::rpc::ErrorInfo info;
    info.set_reason(reason);
    info.set_domain(kDomain);
    details.add_details()->PackFrom(info);
  }
  if (std::string field = ErrorField(status); !field.empty()) {
    google::rpc::BadRequest bad_request;
    auto* violation = bad_request.add_field_violations();
    violation->set_field(field);
    violation->set_description(message);
    details.add_details()->PackFrom(bad_request);
  }
  if (auto retry_after = ErrorRetryAfter(status)) {
    google::rpc::RetryInfo retry;
    const int64_t ms = absl::ToInt64Milliseconds(*retry_after);
    retry.mutable_retry_delay()->set_seconds(ms / 1000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(ms % 1000) * 1'000'000);
    details.add_details()->PackFrom(retry);
  }
  return grpc::Status(code, message, details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return result;
  std::string reason, field;
  std::optional<absl::Duration> retry_after;
  for (const auto& any : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    google::rpc::RetryInfo retry;
    if (any.UnpackTo(&info)) {
      reason = info.reason();
    } else if (any.UnpackTo(&bad_request) && bad_request.field_violations_size() > 0) {
      field = bad_request.field_violations(0).field();
    } else if (any.UnpackTo(&retry)) {
      retry_after = absl::Seconds(retry.retry_delay().seconds()) +
                    absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  return WithDetails(std::move(result), reason, field, retry_after);
}

}  // namespace baton
