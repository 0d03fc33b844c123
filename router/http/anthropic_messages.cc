// The messages of Anthropic's API as those of OpenAI's.
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "router/http/anthropic_request.h"
#include "router/http/json_readers.h"

namespace baton::router {
namespace {

// Claude Code writes this line, which differs from request to request, before its instructions. It
// is meant for a bill, not for the model, and no prefix of the prompt would be found in a cache
// behind it.
constexpr absl::string_view kBillingLine = "x-anthropic-billing-header:";

absl::StatusOr<std::string> TakeText(const std::string& field, Value& value) {
  if (!IsScalar(value, Scalar::Kind::kString)) return WrongType(field, "a string");
  return std::move(value.scalar.text);
}

// The text of a required member.
absl::StatusOr<std::string> TakeTextMember(const std::string& at, absl::string_view key,
                                           Value& object) {
  const std::string field = absl::StrCat(at, ".", key);
  const auto found = absl::c_find(object.keys, key);
  if (found == object.keys.end()) return InvalidField("MISSING_FIELD", field, "required");
  return TakeText(field, object.items[found - object.keys.begin()]);
}

// Texts of several blocks, one a line, as OpenAI's parts are joined.
struct JoinedText {
  void Add(std::string more) {
    if (std::exchange(any, true)) {
      absl::StrAppend(&text, "\n", more);
    } else {
      text = std::move(more);
    }
  }
  std::string text;
  bool any = false;
};

absl::Status UnsupportedBlock(const std::string& at, absl::string_view type,
                              absl::string_view supported) {
  return Unsupported(absl::StrCat(at, ".type"),
                     absl::StrCat(json::Quoted(type), " given, only ", supported, " supported"));
}

absl::StatusOr<std::string> TakeTextBlock(const std::string& at, Value& block,
                                          OpenAiRequest& request) {
  BATON_RETURN_IF_ERROR(CheckMembers(at, block, {"type", "text", "cache_control", "citations"}));
  BATON_RETURN_IF_ERROR(CheckCacheControl(at, block, request));
  if (FindSet(block, "citations") != nullptr) IgnoreField("citations", request);
  return TakeTextMember(at, "text", block);
}

// A text, or blocks of texts alone.
absl::StatusOr<JoinedText> TakeTexts(const std::string& field, Value& content,
                                     OpenAiRequest& request) {
  JoinedText texts;
  if (!IsArray(content)) {
    if (!IsScalar(content, Scalar::Kind::kString)) {
      return WrongType(field, "a string or an array of text blocks");
    }
    texts.Add(std::move(content.scalar.text));
    return texts;
  }
  for (size_t i = 0; i < content.items.size(); ++i) {
    const std::string at = absl::StrCat(field, "[", i, "]");
    BATON_ASSIGN_OR_RETURN(const std::string type, TypeMember(at, content.items[i]));
    if (type != "text") return UnsupportedBlock(at, type, "\"text\" is");
    BATON_ASSIGN_OR_RETURN(std::string text, TakeTextBlock(at, content.items[i], request));
    texts.Add(std::move(text));
  }
  return texts;
}

// True if `text` begins with the line.
bool DropBillingLine(std::string* text, OpenAiRequest& request) {
  if (!absl::StartsWith(*text, kBillingLine)) return false;
  const size_t end = text->find('\n');
  text->erase(0, end == std::string::npos ? end : end + 1);
  IgnoreField(absl::StripSuffix(kBillingLine, ":"), request);
  return true;
}

Value MessageOf(absl::string_view role, std::string text) {
  Value message;
  json::AddMember("role", json::TextValue(std::string(role)), &message);
  json::AddMember("content", json::TextValue(std::move(text)), &message);
  return message;
}

// Adds messages to a conversation, those of one role that follow one another as one.
class Turns {
 public:
  explicit Turns(OpenAiRequest& request) : request_(request) {
    request.conversation.messages.kind = Value::Kind::kArray;
  }

  absl::Status Read(const std::string& at, Value& message) {
    if (!IsObject(message)) return WrongType(at, "an object with a role and a content");
    BATON_RETURN_IF_ERROR(CheckMembers(at, message, {"role", "content"}));
    BATON_ASSIGN_OR_RETURN(const std::string role, TakeTextMember(at, "role", message));
    const std::string field = at + ".content";
    const auto found = absl::c_find(message.keys, "content");
    if (found == message.keys.end()) return InvalidField("MISSING_FIELD", field, "required");
    Value& content = message.items[found - message.keys.begin()];
    if (role == "user") return ReadUser(field, content);
    if (role == "assistant") return ReadAssistant(field, content);
    if (role == "system") return ReadSystem(field, content);
    return Unsupported(
        at + ".role",
        absl::StrCat(json::Quoted(role), " given, \"user\", \"assistant\" or \"system\" expected"));
  }

  // Writes the last message.
  void End() {
    if (role_.empty()) return;
    Value message;
    json::AddMember("role", json::TextValue(role_), &message);
    // A message with calls needs no content.
    const bool no_content = !text_.any && !calls_.empty();
    json::AddMember("content", no_content ? Value() : json::TextValue(std::move(text_.text)),
                    &message);
    if (thinking_.any) {
      json::AddMember("reasoning_content", json::TextValue(std::move(thinking_.text)), &message);
    }
    if (!calls_.empty()) {
      Value calls = json::ArrayValue();
      calls.items = std::move(calls_);
      json::AddMember("tool_calls", std::move(calls), &message);
    }
    Push(std::move(message));
    role_.clear();
    text_ = thinking_ = JoinedText();
    calls_.clear();
  }

  bool ends_with_assistant() const { return role_ == "assistant"; }

 private:
  void Push(Value message) { request_.conversation.messages.items.push_back(std::move(message)); }
  void Enter(absl::string_view role) {
    if (role_ == role) return;
    End();
    role_ = std::string(role);
  }

  absl::Status ReadSystem(const std::string& field, Value& content) {
    BATON_ASSIGN_OR_RETURN(JoinedText texts, TakeTexts(field, content, request_));
    End();
    Push(MessageOf("system", std::move(texts.text)));
    return absl::OkStatus();
  }

  absl::Status ReadUser(const std::string& field, Value& content) {
    JoinedText texts;
    bool results = false;
    if (!IsArray(content)) {
      BATON_ASSIGN_OR_RETURN(texts, TakeTexts(field, content, request_));
    }
    for (size_t i = 0; i < content.items.size(); ++i) {
      Value& block = content.items[i];
      const std::string at = absl::StrCat(field, "[", i, "]");
      BATON_ASSIGN_OR_RETURN(const std::string type, TypeMember(at, block));
      if (type == "text") {
        BATON_ASSIGN_OR_RETURN(std::string text, TakeTextBlock(at, block, request_));
        texts.Add(std::move(text));
      } else if (type == "tool_result") {
        BATON_RETURN_IF_ERROR(ReadResult(at, block));
        results = true;
      } else {
        return UnsupportedBlock(at, type, "\"text\" and \"tool_result\" are");
      }
    }
    if (results && !texts.any) return absl::OkStatus();
    Enter("user");
    text_.Add(std::move(texts.text));
    return absl::OkStatus();
  }

  absl::Status ReadResult(const std::string& at, Value& block) {
    BATON_RETURN_IF_ERROR(
        CheckMembers(at, block, {"type", "tool_use_id", "content", "is_error", "cache_control"}));
    BATON_RETURN_IF_ERROR(CheckCacheControl(at, block, request_));
    bool is_error = false;
    if (const Value* given = FindSet(block, "is_error")) {
      BATON_ASSIGN_OR_RETURN(is_error, Bool(at + ".is_error", *given));
    }
    JoinedText texts;
    if (FindSet(block, "content") != nullptr) {
      Value& content = block.items[absl::c_find(block.keys, "content") - block.keys.begin()];
      BATON_ASSIGN_OR_RETURN(texts, TakeTexts(at + ".content", content, request_));
    }
    // Templates have no other place for it.
    if (is_error && !absl::StartsWithIgnoreCase(texts.text, "error")) {
      texts.text.insert(0, "Error: ");
    }
    BATON_ASSIGN_OR_RETURN(std::string id, TakeTextMember(at, "tool_use_id", block));
    End();
    Value message = MessageOf("tool", std::move(texts.text));
    json::AddMember("tool_call_id", json::TextValue(std::move(id)), &message);
    Push(std::move(message));
    return absl::OkStatus();
  }

  absl::Status ReadAssistant(const std::string& field, Value& content) {
    Enter("assistant");
    if (!IsArray(content)) {
      BATON_ASSIGN_OR_RETURN(JoinedText texts, TakeTexts(field, content, request_));
      text_.Add(std::move(texts.text));
    }
    for (size_t i = 0; i < content.items.size(); ++i) {
      Value& block = content.items[i];
      const std::string at = absl::StrCat(field, "[", i, "]");
      BATON_ASSIGN_OR_RETURN(const std::string type, TypeMember(at, block));
      if (type == "text") {
        BATON_ASSIGN_OR_RETURN(std::string text, TakeTextBlock(at, block, request_));
        text_.Add(std::move(text));
      } else if (type == "tool_use") {
        BATON_RETURN_IF_ERROR(ReadCall(at, block));
      } else if (type == "thinking") {
        BATON_RETURN_IF_ERROR(CheckMembers(at, block, {"type", "thinking", "signature"}));
        BATON_ASSIGN_OR_RETURN(std::string text, TakeTextMember(at, "thinking", block));
        thinking_.Add(std::move(text));
      } else if (type == "redacted_thinking") {
        IgnoreField("redacted_thinking", request_);  // only Anthropic can read it
      } else {
        return UnsupportedBlock(at, type, "\"text\", \"tool_use\" and \"thinking\" are");
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadCall(const std::string& at, Value& block) {
    BATON_RETURN_IF_ERROR(
        CheckMembers(at, block, {"type", "id", "name", "input", "cache_control", "caller"}));
    BATON_RETURN_IF_ERROR(CheckCacheControl(at, block, request_));
    if (const Value* caller = FindSet(block, "caller")) {
      BATON_ASSIGN_OR_RETURN(const std::string type, TypeMember(at + ".caller", *caller));
      if (type != "direct") return UnsupportedBlock(at + ".caller", type, "\"direct\" is");
    }
    const Value* input = FindSet(block, "input");
    if (input == nullptr) return InvalidField("MISSING_FIELD", at + ".input", "required");
    if (!IsObject(*input)) return WrongType(at + ".input", "an object");
    Value function;
    // The input becomes a text, because some templates write it as they get it.
    std::string arguments = json::ToText(*input);
    BATON_ASSIGN_OR_RETURN(std::string name, TakeTextMember(at, "name", block));
    json::AddMember("name", json::TextValue(std::move(name)), &function);
    json::AddMember("arguments", json::TextValue(std::move(arguments)), &function);
    BATON_ASSIGN_OR_RETURN(std::string id, TakeTextMember(at, "id", block));
    Value call;
    json::AddMember("id", json::TextValue(std::move(id)), &call);
    json::AddMember("type", json::TextValue("function"), &call);
    json::AddMember("function", std::move(function), &call);
    calls_.push_back(std::move(call));
    return absl::OkStatus();
  }

  OpenAiRequest& request_;
  // The message that the next one may be added to. Without a role there is none.
  std::string role_;
  JoinedText text_;
  JoinedText thinking_;
  std::vector<Value> calls_;
};

}  // namespace

absl::StatusOr<std::string> TypeMember(const std::string& at, const Value& object) {
  const Value* type = FindSet(object, "type");
  if (type == nullptr || !IsScalar(*type, Scalar::Kind::kString)) {
    return WrongType(at, "an object with a type");
  }
  return type->scalar.text;
}

void IgnoreField(absl::string_view name, OpenAiRequest& request) {
  if (!absl::c_linear_search(request.ignored, name)) request.ignored.emplace_back(name);
}

absl::Status CheckCacheControl(const std::string& at, const Value& object, OpenAiRequest& request) {
  const Value* control = FindSet(object, "cache_control");
  if (control == nullptr) return absl::OkStatus();
  const std::string field = at.empty() ? "cache_control" : at + ".cache_control";
  BATON_ASSIGN_OR_RETURN(const std::string type, TypeMember(field, *control));
  if (type != "ephemeral") return UnsupportedBlock(field, type, "\"ephemeral\" is");
  for (const absl::string_view key : {"ttl", "scope"}) {
    const Value* given = FindSet(*control, key);
    if (given == nullptr) continue;
    BATON_RETURN_IF_ERROR(Text(absl::StrCat(field, ".", key), *given).status());
    IgnoreField(absl::StrCat("cache_control.", key), request);
  }
  return CheckMembers(field, *control, {"type", "ttl", "scope"});
}

absl::Status ReadAnthropicSystem(const std::string& name, Value& value, OpenAiRequest& request) {
  if (IsArray(value) && !value.items.empty()) {
    const auto text = absl::c_find(value.items[0].keys, "text");
    if (text != value.items[0].keys.end()) {
      Value& first = value.items[0].items[text - value.items[0].keys.begin()];
      if (DropBillingLine(&first.scalar.text, request) && first.scalar.text.empty()) {
        value.items.erase(value.items.begin());
      }
    }
  } else {
    DropBillingLine(&value.scalar.text, request);
  }
  BATON_ASSIGN_OR_RETURN(JoinedText texts, TakeTexts(name, value, request));
  request.conversation.messages.kind = Value::Kind::kArray;
  if (texts.text.empty()) return absl::OkStatus();
  request.conversation.messages.items.push_back(MessageOf("system", std::move(texts.text)));
  return absl::OkStatus();
}

absl::Status ReadAnthropicMessages(const std::string& name, Value& value, OpenAiRequest& request) {
  if (!IsArray(value) || value.items.empty()) return WrongType(name, "an array of messages");
  Turns turns(request);
  for (size_t i = 0; i < value.items.size(); ++i) {
    BATON_RETURN_IF_ERROR(turns.Read(absl::StrCat(name, "[", i, "]"), value.items[i]));
  }
  // Only a conversation whose tokens are counted may end with it: see ParseAnthropic.
  request.conversation.add_generation_prompt = !turns.ends_with_assistant();
  turns.End();
  return absl::OkStatus();
}

}  // namespace baton::router
