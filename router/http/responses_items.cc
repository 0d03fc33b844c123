#include "router/http/responses_items.h"

#include <cstddef>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "router/http/json_readers.h"

namespace baton::router {
namespace {

// Members that say what the server knows already, such as an item's id.
absl::Status CheckTexts(const std::string& at, const Value& object,
                        std::initializer_list<absl::string_view> keys) {
  for (const absl::string_view key : keys) {
    const Value* value = FindSet(object, key);
    if (value == nullptr) continue;
    BATON_RETURN_IF_ERROR(Text(absl::StrCat(at, ".", key), *value).status());
  }
  return absl::OkStatus();
}

struct PartType {
  absl::string_view type;
  absl::string_view text;  // its member
};
constexpr PartType kMessageParts[] = {
    {"input_text", "text"}, {"output_text", "text"}, {"refusal", "refusal"}};
constexpr PartType kOutputParts[] = {{"input_text", "text"}};
constexpr PartType kSummaryParts[] = {{"summary_text", "text"}};
constexpr PartType kReasoningParts[] = {{"reasoning_text", "text"}};

absl::StatusOr<std::string> ReadPart(const std::string& at, const Value& part,
                                     absl::Span<const PartType> types) {
  if (!IsObject(part)) return WrongType(at, "an object with a type");
  BATON_ASSIGN_OR_RETURN(const std::string type, RequiredText(at, part, "type"));
  const auto found = absl::c_find_if(types, [&](const PartType& one) { return one.type == type; });
  if (found == types.end()) {
    const std::string known = absl::StrJoin(types, ", ", [](std::string* out, const PartType& one) {
      absl::StrAppend(out, json::Quoted(one.type));
    });
    return Unsupported(absl::StrCat(at, ".type"),
                       absl::StrCat(json::Quoted(type), " given, expected: ", known));
  }
  // Answers have annotations and log probabilities, which clients send back.
  BATON_RETURN_IF_ERROR(CheckMembers(at, part, {"type", found->text, "annotations", "logprobs"}));
  return RequiredText(at, part, found->text);
}

// A text, or parts, which are joined by newlines, as those of chats are.
absl::StatusOr<std::string> ReadParts(const std::string& at, const Value& value,
                                      absl::Span<const PartType> types) {
  if (IsScalar(value, Scalar::Kind::kString)) return value.scalar.text;
  if (!IsArray(value)) return WrongType(at, "a string or an array of parts");
  std::vector<std::string> texts;
  for (size_t i = 0; i < value.items.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(texts.emplace_back(),
                           ReadPart(absl::StrCat(at, "[", i, "]"), value.items[i], types));
  }
  return absl::StrJoin(texts, "\n");
}

constexpr absl::string_view kRoles[] = {"user", "assistant", "system", "developer"};

struct ItemsRead {
  ChatMessages& messages;
  std::vector<std::string>& ignored;
};

absl::Status ReadMessage(const std::string& at, const Value& item, ItemsRead& read) {
  BATON_RETURN_IF_ERROR(
      CheckMembers(at, item, {"type", "role", "content", "id", "status", "phase"}));
  BATON_RETURN_IF_ERROR(CheckTexts(at, item, {"id", "status", "phase"}));
  if (FindSet(item, "phase") != nullptr) IgnoreOnce("phase", read.ignored);
  BATON_ASSIGN_OR_RETURN(const std::string role, RequiredText(at, item, "role"));
  if (!absl::c_linear_search(kRoles, role)) {
    return Unsupported(
        at + ".role",
        absl::StrCat(json::Quoted(role), " given, expected: ", absl::StrJoin(kRoles, ", ")));
  }
  const Value* content = FindSet(item, "content");
  if (content == nullptr) return InvalidField("MISSING_FIELD", at + ".content", "required");
  BATON_ASSIGN_OR_RETURN(std::string text, ReadParts(at + ".content", *content, kMessageParts));
  read.messages.AddText(role, std::move(text));
  return absl::OkStatus();
}

absl::Status ReadCall(const std::string& at, const Value& item, ItemsRead& read) {
  BATON_RETURN_IF_ERROR(CheckMembers(
      at, item, {"type", "call_id", "name", "namespace", "arguments", "id", "status"}));
  BATON_RETURN_IF_ERROR(CheckTexts(at, item, {"namespace", "id", "status"}));
  BATON_ASSIGN_OR_RETURN(std::string call_id, RequiredText(at, item, "call_id"));
  BATON_ASSIGN_OR_RETURN(std::string name, RequiredText(at, item, "name"));
  const Value* name_space = FindSet(item, "namespace");
  if (name_space != nullptr && !name_space->scalar.text.empty())
    name = QualifiedName(name_space->scalar.text, name);
  BATON_ASSIGN_OR_RETURN(std::string arguments, RequiredText(at, item, "arguments"));
  read.messages.AddCall(std::move(call_id), std::move(name), std::move(arguments));
  return absl::OkStatus();
}

absl::Status ReadCallOutput(const std::string& at, const Value& item, ItemsRead& read) {
  BATON_RETURN_IF_ERROR(CheckMembers(at, item, {"type", "call_id", "output", "id", "status"}));
  BATON_RETURN_IF_ERROR(CheckTexts(at, item, {"id", "status"}));
  BATON_ASSIGN_OR_RETURN(std::string call_id, RequiredText(at, item, "call_id"));
  const Value* output = FindSet(item, "output");
  if (output == nullptr) return InvalidField("MISSING_FIELD", at + ".output", "required");
  BATON_ASSIGN_OR_RETURN(std::string text, ReadParts(at + ".output", *output, kOutputParts));
  read.messages.AddCallOutput(std::move(call_id), std::move(text));
  return absl::OkStatus();
}

// The text of an answer's reasoning item is in its content.
absl::Status ReadReasoning(const std::string& at, const Value& item, ItemsRead& read) {
  BATON_RETURN_IF_ERROR(
      CheckMembers(at, item, {"type", "id", "summary", "content", "encrypted_content", "status"}));
  BATON_RETURN_IF_ERROR(CheckTexts(at, item, {"id", "encrypted_content", "status"}));
  if (FindSet(item, "encrypted_content") != nullptr) IgnoreOnce("encrypted_content", read.ignored);
  std::string summary_text, text;
  if (const Value* summary = FindSet(item, "summary")) {
    BATON_ASSIGN_OR_RETURN(summary_text, ReadParts(at + ".summary", *summary, kSummaryParts));
  }
  if (const Value* content = FindSet(item, "content")) {
    BATON_ASSIGN_OR_RETURN(text, ReadParts(at + ".content", *content, kReasoningParts));
  }
  read.messages.AddReasoning(text.empty() ? std::move(summary_text) : std::move(text));
  return absl::OkStatus();
}

absl::Status ReadReference(const std::string& at, const Value&, ItemsRead&) {
  return Unsupported(at + ".type", "items are not stored by their ids: send the item itself");
}

struct ItemType {
  absl::string_view type;
  absl::Status (*read)(const std::string& at, const Value& item, ItemsRead& read);
};
constexpr ItemType kItemTypes[] = {
    {"message", ReadMessage},          {"function_call", ReadCall},
    {"reasoning", ReadReasoning},      {"function_call_output", ReadCallOutput},
    {"item_reference", ReadReference},
};

absl::Status ReadItem(const std::string& at, const Value& item, ItemsRead& read) {
  if (!IsObject(item)) return WrongType(at, "an object with a type or a role");
  std::string type = "message";  // of an item that has none but a role
  if (const Value* given = FindSet(item, "type")) {
    BATON_ASSIGN_OR_RETURN(type, Text(at + ".type", *given));
  } else if (FindSet(item, "role") == nullptr) {
    return WrongType(at, "an object with a type or a role");
  }
  const auto* found =
      absl::c_find_if(kItemTypes, [&](const ItemType& one) { return one.type == type; });
  if (found != std::end(kItemTypes)) return found->read(at, item, read);
  return Unsupported(at + ".type", absl::StrCat(json::Quoted(type),
                                                " given: there are only messages, function "
                                                "calls, their outputs, and reasoning"));
}

}  // namespace

json::Value& ChatMessages::Add(absl::string_view role, json::Value content) {
  turn_is_open_ = false;
  reasoning_.clear();
  Value& message = messages_.items.emplace_back();
  json::AddMember("role", json::TextValue(std::string(role)), &message);
  json::AddMember("content", std::move(content), &message);
  return message;
}

json::Value& ChatMessages::AddAssistant(json::Value content) {
  std::string reasoning = std::move(reasoning_);
  Value& message = Add("assistant", std::move(content));
  if (!reasoning.empty()) {
    json::AddMember("reasoning_content", json::TextValue(std::move(reasoning)), &message);
  }
  turn_is_open_ = true;
  return message;
}

void ChatMessages::AddText(absl::string_view role, std::string text) {
  if (role == "assistant") {
    AddAssistant(json::TextValue(std::move(text)));
  } else {
    Add(role, json::TextValue(std::move(text)));
  }
}

void ChatMessages::AddReasoning(std::string text) {
  turn_is_open_ = false;
  absl::StrAppend(&reasoning_, reasoning_.empty() || text.empty() ? "" : "\n", text);
}

void ChatMessages::AddCall(std::string call_id, std::string name, std::string arguments) {
  Value& message = turn_is_open_ ? messages_.items.back() : AddAssistant(Value());
  auto calls = absl::c_find(message.keys, "tool_calls");
  if (calls == message.keys.end()) {
    json::AddMember("tool_calls", json::ArrayValue(), &message);
    calls = message.keys.end() - 1;
  }
  Value function;
  json::AddMember("name", json::TextValue(std::move(name)), &function);
  json::AddMember("arguments", json::TextValue(std::move(arguments)), &function);
  Value& call = message.items[calls - message.keys.begin()].items.emplace_back();
  json::AddMember("id", json::TextValue(std::move(call_id)), &call);
  json::AddMember("type", json::TextValue("function"), &call);
  json::AddMember("function", std::move(function), &call);
}

void ChatMessages::AddCallOutput(std::string call_id, std::string text) {
  Value& message = Add("tool", json::TextValue(std::move(text)));
  json::AddMember("tool_call_id", json::TextValue(std::move(call_id)), &message);
}

void IgnoreOnce(absl::string_view name, std::vector<std::string>& ignored) {
  if (!absl::c_linear_search(ignored, name)) ignored.emplace_back(name);
}

std::string QualifiedName(absl::string_view name_space, absl::string_view name) {
  if (name_space == "functions") return std::string(name);
  return absl::StrCat(name_space, absl::EndsWith(name_space, "__") ? "" : "__", name);
}

absl::Status ReadItems(absl::string_view name, const Value& value, ChatMessages& messages,
                       std::vector<std::string>& ignored) {
  if (IsScalar(value, Scalar::Kind::kString)) {
    messages.AddText("user", value.scalar.text);
    return absl::OkStatus();
  }
  if (!IsArray(value)) return WrongType(name, "a string or an array of items");
  ItemsRead read = {messages, ignored};
  for (size_t i = 0; i < value.items.size(); ++i) {
    BATON_RETURN_IF_ERROR(ReadItem(absl::StrCat(name, "[", i, "]"), value.items[i], read));
  }
  return absl::OkStatus();
}

}  // namespace baton::router
