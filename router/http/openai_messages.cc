// The messages of a chat request.
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "router/http/json_readers.h"
#include "router/http/openai_request.h"

namespace baton::router {
namespace {

// Text, or parts of type "text", which are joined by newlines as vLLM does.
absl::Status ReadContent(const std::string& field, Value& content) {
  if (content.is_null() || IsScalar(content, Scalar::Kind::kString)) return absl::OkStatus();
  if (!IsArray(content)) return WrongType(field, "a string or an array of parts");
  std::vector<std::string> texts;
  for (size_t i = 0; i < content.items.size(); ++i) {
    const Value& part = content.items[i];
    const std::string at = absl::StrCat(field, "[", i, "]");
    const Value* type = FindSet(part, "type");
    if (type == nullptr || !IsScalar(*type, Scalar::Kind::kString)) {
      return WrongType(at, "an object with a type");
    }
    if (type->scalar.text != "text") {
      return Unsupported(
          absl::StrCat(at, ".type"),
          absl::StrCat(json::Quoted(type->scalar.text), " given, only \"text\" is supported"));
    }
    BATON_RETURN_IF_ERROR(CheckMembers(at, part, {"type", "text"}));
    const Value* text = FindSet(part, "text");
    if (text == nullptr) return InvalidField("MISSING_FIELD", at + ".text", "required");
    BATON_ASSIGN_OR_RETURN(std::string one, Text(at + ".text", *text));
    texts.push_back(std::move(one));
  }
  content = Value();
  content.scalar.kind = Scalar::Kind::kString;
  content.scalar.text = absl::StrJoin(texts, "\n");
  return absl::OkStatus();
}

// Texts that only some templates read. The last three are names for what a model has thought.
constexpr absl::string_view kTextFields[] = {"name",      "tool_call_id",      "refusal",
                                             "reasoning", "reasoning_content", "thinking"};

absl::Status ReadMessage(const std::string& at, Value& message) {
  DropNulls(message, "content");  // a message with calls needs no content
  for (size_t k = 0; k < message.keys.size(); ++k) {
    const std::string field = absl::StrCat(at, ".", message.keys[k]);
    if (message.keys[k] == "content") {
      BATON_RETURN_IF_ERROR(ReadContent(field, message.items[k]));
    } else if (message.keys[k] == "tool_calls") {
      BATON_RETURN_IF_ERROR(ReadToolCalls(field, message.items[k]));
    } else if (absl::c_linear_search(kTextFields, message.keys[k])) {
      BATON_RETURN_IF_ERROR(Text(field, message.items[k]).status());
    }
  }
  return absl::OkStatus();
}

}  // namespace

bool IsMessageField(absl::string_view name) {
  return name == "role" || name == "content" || name == "tool_calls" ||
         absl::c_linear_search(kTextFields, name);
}

void DropNulls(Value& object, absl::string_view kept) {
  std::vector<std::string> keys;
  std::vector<Value> items;
  for (size_t k = 0; k < object.keys.size(); ++k) {
    if (object.items[k].is_null() && object.keys[k] != kept) continue;
    keys.push_back(std::move(object.keys[k]));
    items.push_back(std::move(object.items[k]));
  }
  object.keys = std::move(keys);
  object.items = std::move(items);
}

absl::Status TakeMessages(absl::string_view name, Value value, OpenAiRequest& request) {
  if (!IsArray(value) || value.items.empty()) return WrongType(name, "an array of messages");
  Value& messages = request.conversation.messages;
  messages = std::move(value);
  for (size_t i = 0; i < messages.items.size(); ++i) {
    Value& message = messages.items[i];
    const std::string at = absl::StrCat(name, "[", i, "]");
    const Value* role = FindSet(message, "role");
    if (role == nullptr || !IsScalar(*role, Scalar::Kind::kString)) {
      return WrongType(at, "an object with a role");
    }
    BATON_RETURN_IF_ERROR(ReadMessage(at, message));
  }
  return absl::OkStatus();
}

}  // namespace baton::router
