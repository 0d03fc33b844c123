// The messages of a chat request.
#include <string>
#include <vector>

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
    const Value* type = part.Find("type");
    if (type == nullptr || !IsScalar(*type, Scalar::Kind::kString)) {
      return WrongType(at, "an object with a type");
    }
    if (type->scalar.text != "text") {
      return Unsupported(
          absl::StrCat(at, ".type"),
          absl::StrCat(json::Quoted(type->scalar.text), " given, only \"text\" is supported"));
    }
    const Value* text = part.Find("text");
    if (text == nullptr) return InvalidField("MISSING_FIELD", at + ".text", "required");
    BATON_ASSIGN_OR_RETURN(std::string one, Text(at + ".text", *text));
    texts.push_back(std::move(one));
  }
  content = Value();
  content.scalar.kind = Scalar::Kind::kString;
  content.scalar.text = absl::StrJoin(texts, "\n");
  return absl::OkStatus();
}

// A null counts as absent, except for the content, which a message with calls need not have: to a
// template, a variable that is null is not one that is absent.
void DropNulls(Value& message) {
  for (size_t k = message.keys.size(); k-- > 0;) {
    if (message.keys[k] == "content" || !message.items[k].is_null()) continue;
    message.keys.erase(message.keys.begin() + k);
    message.items.erase(message.items.begin() + k);
  }
}

}  // namespace

absl::Status ReadMessages(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsArray(value) || value.items.empty()) return WrongType(name, "an array of messages");
  Value& messages = request.conversation.messages;
  messages = value;
  for (size_t i = 0; i < messages.items.size(); ++i) {
    Value& message = messages.items[i];
    const std::string at = absl::StrCat(name, "[", i, "]");
    const Value* role = message.Find("role");
    if (role == nullptr || !IsScalar(*role, Scalar::Kind::kString)) {
      return WrongType(at, "an object with a role");
    }
    DropNulls(message);
    for (size_t k = 0; k < message.keys.size(); ++k) {
      if (message.keys[k] == "content") {
        BATON_RETURN_IF_ERROR(ReadContent(at + ".content", message.items[k]));
      } else if (message.keys[k] == "tool_calls") {
        BATON_RETURN_IF_ERROR(CheckToolCalls(at + ".tool_calls", message.items[k]));
      } else if (message.keys[k] == "tool_call_id") {
        BATON_RETURN_IF_ERROR(Text(at + ".tool_call_id", message.items[k]).status());
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::router
