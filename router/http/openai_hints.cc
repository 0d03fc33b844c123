#include "router/http/openai_hints.h"

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "router/http/json_readers.h"

namespace baton::router {
namespace {

// OpenAI's bound.
constexpr size_t kMaxMetadata = 16;

absl::Status Ignore(absl::string_view name, OpenAiRequest& request) {
  request.ignored.emplace_back(name);
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadMetadata(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsObject(value)) return WrongType(name, "an object of texts");
  if (value.keys.size() > kMaxMetadata) {
    return OutOfRange(name, absl::StrCat(value.keys.size(), " members"),
                      absl::StrCat("at most ", kMaxMetadata, " expected"));
  }
  for (size_t i = 0; i < value.keys.size(); ++i) {
    if (value.items[i].is_null()) continue;
    const std::string field = absl::StrCat(name, ".", json::Printable(value.keys[i]));
    BATON_RETURN_IF_ERROR(Text(field, value.items[i]).status());
  }
  return Ignore(name, request);
}

absl::Status ReadStore(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const bool store, Bool(name, value));
  return store ? Ignore(name, request) : absl::OkStatus();
}

absl::Status ReadServiceTier(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const std::string tier, Text(name, value));
  return tier == "auto" || tier == "default" ? absl::OkStatus() : Ignore(name, request);
}

absl::Status ReadAdvice(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_RETURN_IF_ERROR(Text(name, value).status());
  return Ignore(name, request);
}

absl::Status ReadPrediction(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsObject(value)) return WrongType(name, "an object");
  BATON_RETURN_IF_ERROR(CheckMembers(name, value, {"type", "content"}));
  return Ignore(name, request);
}

absl::Status ReadFunctions(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsArray(value)) return WrongType(name, "an array");
  if (!value.items.empty()) return Unsupported(name, "tools take the place of functions");
  return Ignore(name, request);
}

absl::Status ReadFunctionCall(absl::string_view name, const Value& value, OpenAiRequest& request) {
  const bool is_text = IsScalar(value, Scalar::Kind::kString);
  if (is_text && (value.scalar.text == "none" || value.scalar.text == "auto")) {
    return Ignore(name, request);
  }
  return Unsupported(name, "tool_choice takes the place of function_call");
}

absl::Status ReadHint(absl::string_view name, const Value& value, OpenAiRequest&) {
  return Text(name, value).status();
}

absl::Status SettleHints(OpenAiRequest& request) {
  if ((request.include_usage || request.continuous_usage) && !request.stream) {
    request.include_usage = request.continuous_usage = false;
    request.ignored.emplace_back("stream_options");
  }
  if (!request.wants_logprobs && request.top_logprobs) {
    if (*request.top_logprobs != 0) {
      return InvalidField("ONLY_WITH_LOGPROBS", "top_logprobs", "given without logprobs: true");
    }
    request.ignored.emplace_back("top_logprobs");
  }
  return absl::OkStatus();
}

}  // namespace baton::router
