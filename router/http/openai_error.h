// Errors in the shape of OpenAI's API: {"error": {"message", "type", "param", "code"}}.
#ifndef BATON_ROUTER_HTTP_OPENAI_ERROR_H_
#define BATON_ROUTER_HTTP_OPENAI_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/http/http_server.h"

namespace baton::router {

// The HTTP status of an error: 400, 401, 403, 404, 429, 499 (cancelled), 500, 503, 504.
int HttpStatusOf(const absl::Status& error);
// `param` is the field as the client named it; `code` the reason in lower case, except
// context_length_exceeded and model_not_found, which clients know. `prompt_field`: "prompt",
// "messages", "input" or "documents".
std::string ErrorJson(const absl::Status& error, absl::string_view prompt_field);
// The whole answer: with Retry-After, in whole seconds rounded up, and retry-after-ms if the error
// has a time to retry.
HttpResponse ErrorResponse(const absl::Status& error, absl::string_view prompt_field);
// For what is no API call.
HttpResponse PlainError(int status, absl::string_view message, absl::string_view code);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_ERROR_H_
