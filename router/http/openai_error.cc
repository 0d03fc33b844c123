#include "router/http/openai_error.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"

namespace baton::router {
namespace {

constexpr int kClientClosedRequest = 499;  // nginx's
constexpr double kLongestRetry_s = 86'400;

const char* TypeOf(int status) {
  switch (status) {
    case 400:
    case 401:
    case 403:
    case 404:
    case 405:
    case 413:
    case 431:
      return "invalid_request_error";
    case 429:
      return "rate_limit_error";
    case 408:
    case 504:
      return "timeout_error";
    default:
      return "server_error";
  }
}

std::string CodeOf(const absl::Status& error) {
  const std::string reason = ErrorReason(error);
  if (reason == "PROMPT_TOO_LONG") return "context_length_exceeded";
  if (!reason.empty()) return absl::AsciiStrToLower(reason);
  return absl::AsciiStrToLower(absl::StatusCodeToString(error.code()));
}

// From the field of the gRPC request to the client's.
std::string ParamOf(const absl::Status& error, absl::string_view prompt_field) {
  const std::string field = ErrorField(error);
  absl::string_view name = field;
  if (name == "text" || name == "token_ids" || name == "inputs" || name == "items") {
    return std::string(prompt_field);
  }
  if (name == "prefix") return "query";  // of a ranking
  absl::ConsumePrefix(&name, "sampling.");
  absl::ConsumePrefix(&name, "stop.");
  if (name == "tenant") return "user";
  return std::string(name);
}

HttpResponse JsonError(int status, std::string body) {
  return {status, {{"Content-Type", "application/json"}}, std::move(body)};
}

std::string Body(int status, absl::string_view message, const std::string& param,
                 const std::string& code) {
  const nlohmann::json null;
  const nlohmann::json json = {{"error",
                                {{"message", std::string(message)},
                                 {"type", TypeOf(status)},
                                 {"param", param.empty() ? null : nlohmann::json(param)},
                                 {"code", code}}}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

int HttpStatusOf(const absl::Status& error) {
  switch (error.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      // What never fits is the request's fault; without a time to retry, it would come back.
      return ErrorRetryAfter(error) ? 429 : 400;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    case absl::StatusCode::kCancelled:
      return kClientClosedRequest;
    case absl::StatusCode::kUnimplemented:
      return 501;
    default:
      return 500;
  }
}

std::string ErrorJson(const absl::Status& error, absl::string_view prompt_field) {
  const std::string param = ParamOf(error, prompt_field);
  std::string message(error.message());
  // Messages begin with the field, by its name in the gRPC request.
  const std::string prefix = absl::StrCat(ErrorField(error), ": ");
  if (!param.empty() && absl::StartsWith(message, prefix)) {
    message = absl::StrCat(param, ": ", message.substr(prefix.size()));
  }
  return Body(HttpStatusOf(error), message, param, CodeOf(error));
}

HttpResponse ErrorResponse(const absl::Status& error, absl::string_view prompt_field) {
  HttpResponse response = JsonError(HttpStatusOf(error), ErrorJson(error, prompt_field));
  if (response.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (const auto retry = ErrorRetryAfter(error)) {
    const double seconds = std::clamp(absl::ToDoubleSeconds(*retry), 0.0, kLongestRetry_s);
    const auto whole = [](double value) { return static_cast<int64_t>(std::ceil(value)); };
    response.headers.emplace_back("Retry-After",
                                  absl::StrCat(std::max<int64_t>(1, whole(seconds))));
    response.headers.emplace_back("retry-after-ms", absl::StrCat(whole(seconds * 1e3)));
  }
  return response;
}

HttpResponse PlainError(int status, absl::string_view message, absl::string_view code) {
  return JsonError(status, Body(status, message, "", std::string(code)));
}

}  // namespace baton::router
