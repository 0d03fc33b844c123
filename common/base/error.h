// Errors as users see them: a status code, a message and a machine-readable reason. Reason, field
// and retry time are payloads of absl::Status, so that code without gRPC can set them;
// base/rpc/grpc_status.h converts them to google.rpc.ErrorInfo, BadRequest and RetryInfo and back.
// The request id is a payload that only the SDK sets.
#ifndef BATON_COMMON_BASE_ERROR_H_
#define BATON_COMMON_BASE_ERROR_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton {

// Reasons are UPPER_SNAKE_CASE, e.g. "PROMPT_TOO_LONG". docs/errors.md lists all of them.
absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message);

// INVALID_ARGUMENT for one field of a request, e.g. "sampling.temperature".
absl::Status InvalidField(absl::string_view reason, absl::string_view field,
                          absl::string_view message);

// Adds the time after which the caller may retry.
absl::Status WithRetryAfter(absl::Status status, absl::Duration retry_after);

// Adds the id of the request that failed, as in the cluster's logs. An empty id, or an OK status,
// changes nothing.
absl::Status WithRequestId(absl::Status status, absl::string_view request_id);

// Sets each of reason, field and retry time that is not empty. For code that decodes a status from
// the wire.
absl::Status WithDetails(absl::Status status, absl::string_view reason, absl::string_view field,
                         std::optional<absl::Duration> retry_after);

// Each returns one payload, or an empty value if the status lacks it.
std::string ErrorReason(const absl::Status& status);
std::string ErrorField(const absl::Status& status);
std::optional<absl::Duration> ErrorRetryAfter(const absl::Status& status);
std::string ErrorRequestId(const absl::Status& status);

// The same error with "context: " before its message. Keeps the payloads.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace baton

#endif  // BATON_COMMON_BASE_ERROR_H_
