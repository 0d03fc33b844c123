#include "router/http/openai_response_format.h"

#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/chat/reasoning.h"
#include "common/json/json.h"
#include "router/http/json_readers.h"

namespace baton::router {
namespace {

absl::Status ReadJsonSchema(const std::string& name, const Value* value, OpenAiRequest& request) {
  if (value == nullptr || !IsObject(*value)) return WrongType(name, "an object with a schema");
  BATON_RETURN_IF_ERROR(CheckMembers(name, *value, {"name", "description", "schema", "strict"}));
  for (const char* key : {"name", "description"}) {
    const Value* text = FindSet(*value, key);
    if (text == nullptr) continue;
    BATON_RETURN_IF_ERROR(Text(absl::StrCat(name, ".", key), *text).status());
  }
  // An answer is never less than strict.
  if (const Value* strict = FindSet(*value, "strict")) {
    BATON_RETURN_IF_ERROR(Bool(absl::StrCat(name, ".strict"), *strict).status());
  }
  const Value* const schema = FindSet(*value, "schema");
  if (schema == nullptr || !IsObject(*schema)) {
    return WrongType(absl::StrCat(name, ".schema"), "an object");
  }
  request.generate.mutable_structured_output()->set_json_schema(json::ToText(*schema));
  return absl::OkStatus();
}

absl::Status Twice(absl::string_view name) {
  return InvalidField("NOT_WITH_STRUCTURED_OUTPUT", name,
                      "given beside another field that says what the answer has to be");
}

// `key`: json, regex, choice or json_object, of the value `item`.
absl::Status ReadKind(const std::string& field, absl::string_view key, const Value& item,
                      v1::StructuredOutput& structured) {
  if (key == "regex") {
    BATON_ASSIGN_OR_RETURN(*structured.mutable_regex(), Text(field, item));
    return absl::OkStatus();
  }
  if (key == "json") {
    const bool is_text = IsScalar(item, Scalar::Kind::kString);
    if (!is_text && !IsObject(item)) return WrongType(field, "a schema, or its text");
    structured.set_json_schema(is_text ? item.scalar.text : json::ToText(item));
    return absl::OkStatus();
  }
  if (key == "json_object") {
    BATON_ASSIGN_OR_RETURN(const bool wanted, Bool(field, item));
    if (!wanted) return WrongType(field, "true");
    structured.mutable_json_object();
    return absl::OkStatus();
  }
  if (key != "choice") return Unsupported(field, "json, regex, choice or json_object expected");
  if (!IsArray(item)) return WrongType(field, "an array of strings");
  structured.mutable_choices();
  for (const Value& text : item.items) {
    BATON_ASSIGN_OR_RETURN(*structured.mutable_choices()->add_texts(), Text(field, text));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadResponseFormat(absl::string_view name, const Value& value,
                                OpenAiRequest& request) {
  const Value* const type = FindSet(value, "type");
  if (type == nullptr || !IsScalar(*type, Scalar::Kind::kString)) {
    return WrongType(name, "an object with a type");
  }
  const std::string& kind = type->scalar.text;
  if (kind == "text") return CheckMembers(name, value, {"type"});
  if (request.generate.has_structured_output()) return Twice(name);
  if (kind == "json_object") {
    request.generate.mutable_structured_output()->mutable_json_object();
    return CheckMembers(name, value, {"type"});
  }
  if (kind == "json_schema") {
    BATON_RETURN_IF_ERROR(CheckMembers(name, value, {"type", "json_schema"}));
    return ReadJsonSchema(absl::StrCat(name, ".json_schema"), value.Find("json_schema"), request);
  }
  return Unsupported(absl::StrCat(name, ".type"),
                     "\"text\", \"json_object\" or \"json_schema\" expected");
}

absl::Status ReadStructuredOutputs(absl::string_view name, const Value& value,
                                   OpenAiRequest& request) {
  const auto is_set = [](const Value& item) { return !item.is_null(); };
  if (!IsObject(value) || absl::c_count_if(value.items, is_set) != 1) {
    return WrongType(name, "an object with one of json, regex, choice and json_object");
  }
  if (request.generate.has_structured_output()) return Twice(name);
  const size_t set = absl::c_find_if(value.items, is_set) - value.items.begin();
  return ReadKind(absl::StrCat(name, ".", json::Printable(value.keys[set])), value.keys[set],
                  value.items[set], *request.generate.mutable_structured_output());
}

absl::Status ReadGuidedDecoding(absl::string_view name, const Value& value,
                                OpenAiRequest& request) {
  if (request.generate.has_structured_output()) return Twice(name);
  return ReadKind(std::string(name), absl::StripPrefix(name, "guided_"), value,
                  *request.generate.mutable_structured_output());
}

absl::Status ReadAnyWhitespace(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.any_whitespace, Bool(name, value));
  return absl::OkStatus();
}

void SettleAnyWhitespace(OpenAiRequest& request) {
  if (!request.any_whitespace) return;
  if (!request.generate.has_structured_output()) {
    request.ignored.emplace_back("any_whitespace");
    return;
  }
  request.generate.mutable_structured_output()->set_any_whitespace(true);
}

void LetReason(chat::ReasoningFormat format, bool ends_in_reasoning, bool ends_after_reasoning,
               v1::GenerateRequest& request) {
  if (format == chat::ReasoningFormat::kNone || !request.has_structured_output() ||
      ends_after_reasoning) {
    return;
  }
  v1::StructuredOutput& constraint = *request.mutable_structured_output();
  const bool calls =
      constraint.has_tool_calls() &&
      (constraint.tool_calls().required() || !constraint.tool_calls().before_answer().empty());
  const chat::ReasoningTexts texts = chat::ReasoningTextsOf(format, calls);
  if (!ends_in_reasoning) constraint.mutable_reasoning()->set_begin(std::string(texts.begin));
  constraint.mutable_reasoning()->set_end(std::string(texts.end));
}

}  // namespace baton::router
