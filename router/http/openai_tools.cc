// The tools of a chat request, and the calls in its messages.
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "router/http/json_readers.h"
#include "router/http/openai_request.h"

namespace baton::router {
namespace {

constexpr size_t kMaxTools = 128;
constexpr size_t kMaxToolNameBytes = 256;

// Returns the field `function`, which must have a name, of an object of type "function". Drops the
// nulls of both.
absl::StatusOr<Value*> FunctionOf(const std::string& name, Value& value) {
  DropNulls(value);
  if (const Value* type = value.Find("type")) {
    BATON_ASSIGN_OR_RETURN(const std::string text, Text(name + ".type", *type));
    if (text != "function") return Unsupported(name + ".type", "only \"function\" is supported");
  }
  const auto found = absl::c_find(value.keys, "function");
  if (found == value.keys.end() || !IsObject(value.items[found - value.keys.begin()])) {
    return WrongType(name, "an object with an object \"function\"");
  }
  Value* const function = &value.items[found - value.keys.begin()];
  DropNulls(*function);
  const std::string field = name + ".function.name";
  const Value* function_name = function->Find("name");
  if (function_name == nullptr) return InvalidField("MISSING_FIELD", field, "required");
  BATON_ASSIGN_OR_RETURN(const std::string text, Text(field, *function_name));
  if (text.empty() || text.size() > kMaxToolNameBytes) {
    return OutOfRange(field, absl::StrCat(text.size(), " bytes"),
                      absl::StrCat("1 to ", kMaxToolNameBytes, " expected"));
  }
  return function;
}

}  // namespace

absl::Status ReadTools(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsArray(value)) return WrongType(name, "an array of tools");
  if (value.items.size() > kMaxTools) {
    return OutOfRange(name, absl::StrCat(value.items.size(), " tools"),
                      absl::StrCat("at most ", kMaxTools, " expected"));
  }
  Value tools = value;
  for (size_t i = 0; i < tools.items.size(); ++i) {
    const std::string at = absl::StrCat(name, "[", i, "]");
    BATON_ASSIGN_OR_RETURN(const Value* function, FunctionOf(at, tools.items[i]));
    if (const Value* strict = function->Find("strict")) {
      const std::string field = at + ".function.strict";
      BATON_ASSIGN_OR_RETURN(const bool is_strict, Bool(field, *strict));
      if (is_strict) return Unsupported(field, "arguments are not forced to follow the schema");
    }
  }
  // An empty list asks for no tools, as an absent one.
  if (!tools.items.empty()) request.conversation.tools = std::move(tools);
  return absl::OkStatus();
}

absl::Status ReadToolChoice(absl::string_view name, const Value& value, OpenAiRequest& request) {
  const bool is_text = IsScalar(value, Scalar::Kind::kString);
  if (!is_text && !IsObject(value)) return WrongType(name, "a string or an object");
  if (is_text && value.scalar.text == "auto") return absl::OkStatus();
  if (is_text && value.scalar.text == "none") {
    request.may_call_tools = false;
    return absl::OkStatus();
  }
  return Unsupported(name,
                     "only \"auto\" and \"none\" are supported: the model is not forced to call");
}

absl::Status ReadToolCalls(const std::string& name, Value& value) {
  if (!IsArray(value)) return WrongType(name, "an array of calls");
  for (size_t i = 0; i < value.items.size(); ++i) {
    const std::string at = absl::StrCat(name, "[", i, "]");
    BATON_ASSIGN_OR_RETURN(const Value* function, FunctionOf(at, value.items[i]));
    BATON_RETURN_IF_ERROR(CheckMembers(at, value.items[i], {"id", "type", "index", "function"}));
    BATON_RETURN_IF_ERROR(CheckMembers(at + ".function", *function, {"name", "arguments"}));
    if (const Value* id = value.items[i].Find("id")) {
      BATON_RETURN_IF_ERROR(Text(at + ".id", *id).status());
    }
    if (const Value* index = value.items[i].Find("index")) {
      BATON_RETURN_IF_ERROR(Int32(at + ".index", *index).status());
    }
    const Value* arguments = function->Find("arguments");
    if (arguments == nullptr) {
      return InvalidField("MISSING_FIELD", at + ".function.arguments", "required");
    }
    if (!IsScalar(*arguments, Scalar::Kind::kString) && !IsObject(*arguments)) {
      return WrongType(at + ".function.arguments", "a string with a JSON object");
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::router
