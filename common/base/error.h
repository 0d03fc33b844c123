// Errors as users see them: a code, a sentence, and a machine-readable reason.
// The reason, and what goes with it, travel as payloads of absl::Status, so that inner rooms need
// no Protobuf; base/rpc turns them into google.rpc.ErrorInfo, BadRequest and RetryInfo and back.
#ifndef BATON_COMMON_BASE_ERROR_H_
#define BATON_COMMON_BASE_ERROR_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton {

// Reasons are UPPER_SNAKE_CASE, e.g. "PROMPT_TOO_LONG". See docs/errors.md.
absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message);

// INVALID_ARGUMENT about one field of the request, e.g. field "sampling.temperature".
absl::Status InvalidField(absl::string_view reason, absl::string_view field,
                          absl::string_view message);

// Adds when to try again.
absl::Status WithRetryAfter(absl::Status status, absl::Duration retry_after);

// Sets those of the three that are given. For code that decodes a status from the wire.
absl::Status WithDetails(absl::Status status, absl::string_view reason, absl::string_view field,
                         std::optional<absl::Duration> retry_after);

// Empty / nullopt where the status carries none.
std::string ErrorReason(const absl::Status& status);
std::string ErrorField(const absl::Status& status);
std::optional<absl::Duration> ErrorRetryAfter(const absl::Status& status);

// The same error with "context: " before its message; payloads stay.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace baton

#endif  // BATON_COMMON_BASE_ERROR_H_
