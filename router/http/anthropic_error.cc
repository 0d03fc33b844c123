#include "router/http/anthropic_error.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "router/http/openai_error.h"

namespace baton::router {
namespace {

const char* AnthropicTypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 408:
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string ErrorBody(int status, absl::string_view message, absl::string_view request_id,
                      bool of_thread = false) {
  nlohmann::ordered_json json = {
      {"type", "error"},
      {"error", {{"type", AnthropicTypeOf(status)}, {"message", std::string(message)}}},
      {"request_id", std::string(request_id)}};
  if (of_thread) {
    json["error"]["details"] = {{"error_code", "thread_unsupported_request"},
                                {"unsupported", nlohmann::ordered_json::array({"thread"})}};
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// From the field of the gRPC request to the client's.
std::string AnthropicField(absl::string_view field) {
  if (field == "text" || field == "token_ids") return "messages";
  if (field == "tenant") return "metadata.user_id";
  if (field == "stop.stop") return "stop_sequences";
  if (absl::ConsumePrefix(&field, "structured_output.json_schema") ||
      absl::ConsumePrefix(&field, "structured_output")) {
    return absl::StrCat("output_config.format", field);
  }
  absl::ConsumePrefix(&field, "sampling.");
  absl::ConsumePrefix(&field, "stop.");
  return std::string(field);
}

}  // namespace

std::string AnthropicErrorJson(const absl::Status& error, absl::string_view request_id) {
  std::string message(error.message());
  const std::string field = ErrorField(error);
  const std::string prefix = absl::StrCat(field, ": ");
  if (!field.empty() && absl::StartsWith(message, prefix)) {
    message = absl::StrCat(AnthropicField(field), ": ", message.substr(prefix.size()));
  }
  if (ErrorReason(error) == "PROMPT_TOO_LONG") {
    message = absl::StrCat("prompt is too long: ", message);
  }
  return ErrorBody(HttpStatusOf(error), message, request_id, field == "thread");
}

HttpResponse AnthropicErrorResponse(const absl::Status& error, absl::string_view request_id) {
  HttpResponse response = ErrorResponse(error, "messages");
  response.body = AnthropicErrorJson(error, request_id);
  return response;
}

HttpResponse AnthropicPlainError(int status, absl::string_view message,
                                 absl::string_view request_id) {
  return {status, {{"Content-Type", "application/json"}}, ErrorBody(status, message, request_id)};
}

}  // namespace baton::router
