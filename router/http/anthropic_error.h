// Errors in the shape of Anthropic's API:
// {"type": "error", "error": {"type", "message"}, "request_id"}.
#ifndef BATON_ROUTER_HTTP_ANTHROPIC_ERROR_H_
#define BATON_ROUTER_HTTP_ANTHROPIC_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/http/http_server.h"

namespace baton::router {

// The header in which Anthropic's clients look for a request's id, in every answer.
inline constexpr char kAnthropicRequestId[] = "request-id";

// The message begins with the field as the client named it, or, for a prompt that does not fit,
// with the words by which agents know to shorten their conversation. The error of the field
// `thread` has the details by which clients know to go on without it.
std::string AnthropicErrorJson(const absl::Status& error, absl::string_view request_id);
// The whole answer, with the status and the times to retry of ErrorResponse.
HttpResponse AnthropicErrorResponse(const absl::Status& error, absl::string_view request_id);
// For what is no API call.
HttpResponse AnthropicPlainError(int status, absl::string_view message,
                                 absl::string_view request_id);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_ANTHROPIC_ERROR_H_
