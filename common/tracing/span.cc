#include "common/tracing/span.h"

#include "common/base/error.h"

namespace baton::tracing {

void Span::Fail(const absl::Status& status) {
  if (status.ok()) return;
  failed = true;
  status_message = std::string(status.message());
  const std::string reason = ErrorReason(status);
  Set("error.type", reason.empty() ? absl::StatusCodeToString(status.code()) : reason);
  Set("rpc.grpc.status_code", static_cast<int64_t>(status.code()));
}

}  // namespace baton::tracing
