#include "common/chat/bare_calls.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/utf8.h"
#include "common/chat/markers.h"
#include "common/json/schema_types.h"

namespace baton::chat {
namespace {

using JsonValue = json::Value;

// The parameters of the tool; null if they are not known.
const JsonValue* ParametersOf(const JsonValue* tools, absl::string_view name) {
  if (tools == nullptr) return nullptr;
  for (const JsonValue& tool : tools->items) {
    const JsonValue* function = tool.Find("function");
    const JsonValue* own = function == nullptr ? nullptr : function->Find("name");
    if (own != nullptr && own->scalar.text == name) return function->Find("parameters");
  }
  return nullptr;
}

uint32_t TypesOf(const JsonValue* parameters, absl::string_view key) {
  const JsonValue* properties = parameters == nullptr ? nullptr : parameters->Find("properties");
  const JsonValue* schema = properties == nullptr ? nullptr : properties->Find(key);
  return schema == nullptr ? json::kAnyType : json::TypesOf(*schema, *parameters);
}

JsonValue BareValue(absl::string_view text, uint32_t types) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  // Within the object of the arguments, it nests deeper by one.
  const auto parsed = json::Parse(absl::StrCat("[", trimmed, "]"), "a value");
  if (parsed.ok() && parsed->items.size() == 1 &&
      (json::SchemaTypeOf(parsed->items[0]) & types) != 0) {
    return parsed->items[0];
  }
  // Some models write Python's names.
  if ((types & json::kBooleanType) != 0 && (trimmed == "True" || trimmed == "False")) {
    return json::BoolValue(trimmed == "True");
  }
  if ((types & json::kNullType) != 0 && trimmed == "None") return JsonValue();
  return json::TextValue(std::string(text));
}

// Finds the end of a JSON array, object or string that arrives in pieces.
class JsonExtent {
 public:
  // True if the byte ends it.
  bool Push(char c) {
    if (std::exchange(escaped_, false)) return false;
    if (in_string_) {
      escaped_ = c == '\\';
      in_string_ = c != '"';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      --depth_;
    }
    return !in_string_ && depth_ <= 0;
  }

 private:
  int depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
};

// Marks around keys and values. `after_name`: what ends the name; without `needs_after_name`, the
// next mark may end it, too.
struct XmlMarks {
  char after_name;
  bool needs_after_name;
  absl::string_view before_key;
  absl::string_view after_key;
  absl::string_view before_value;
  absl::string_view after_value;
  absl::string_view end;
  bool lines;  // values have lines of their own
};
constexpr XmlMarks kQwenMarks = {'>', true,           "<parameter=", ">",
                                 "",  "</parameter>", "</function>", true};
constexpr XmlMarks kGlmMarks = {'\n',          false,          "<arg_key>",    "</arg_key>",
                                "<arg_value>", "</arg_value>", "</tool_call>", false};

class XmlCallReader final : public CallReader {
 public:
  XmlCallReader(const XmlMarks& marks, const JsonValue* tools) : marks_(marks), tools_(tools) {
    in_call_ = true;
  }

  Result Read(absl::string_view* text, CallWriter& out) override {
    for (;;) {
      const std::optional<Result> result = Step(text, out);
      if (result) return *result;
    }
  }

  // Some models do not mark the end of their last call, and an answer may be cut off within the
  // mark. A "<" alone may begin a further argument.
  bool Finish(absl::string_view text, CallWriter& out) override {
    if (state_ != State::kGap || text.size() < 2 || !IsProperPrefix(text, marks_.end)) return false;
    if (!members_.BeginCall(name_, out)) return false;
    EndCall(out);
    return true;
  }

 private:
  enum class State : uint8_t { kName, kGap, kKey, kBeforeValue, kLine, kString, kJson, kBare };

  // Each returns nullopt if it has taken something.
  std::optional<Result> Step(absl::string_view* text, CallWriter& out) {
    switch (state_) {
      case State::kName:
        return ReadName(text);
      case State::kGap:
        return ReadGap(text, out);
      case State::kKey:
        return ReadKey(text);
      case State::kBeforeValue:
        return ReadBeforeValue(text, out);
      case State::kLine:
        if (text->empty()) return Result::kMore;
        absl::ConsumePrefix(text, "\n");
        state_ = State::kString;
        return std::nullopt;
      case State::kString:
        return ReadString(text, out);
      case State::kJson:
      case State::kBare:
        return ReadValue(text, out);
    }
    return Result::kBroken;
  }

  std::optional<Result> ReadName(absl::string_view* text) {
    if (text->empty()) return Result::kMore;
    const char c = text->front();
    if (c != marks_.after_name && c != '<') {
      text->remove_prefix(1);
      kept_ += c;
      return kept_.size() > kMaxHeaderBytes ? std::optional(Result::kBroken) : std::nullopt;
    }
    name_ = std::string(absl::StripAsciiWhitespace(kept_));
    if (!IsBareName(name_) || (c == '<' && marks_.needs_after_name)) return Result::kBroken;
    if (c == marks_.after_name) text->remove_prefix(1);
    parameters_ = ParametersOf(tools_, name_);
    state_ = State::kGap;
    return std::nullopt;
  }

  std::optional<Result> ReadGap(absl::string_view* text, CallWriter& out) {
    *text = absl::StripLeadingAsciiWhitespace(*text);
    if (IsProperPrefix(*text, marks_.before_key) || IsProperPrefix(*text, marks_.end)) {
      return Result::kMore;
    }
    if (absl::ConsumePrefix(text, marks_.before_key)) {
      state_ = State::kKey;
      kept_.clear();
      return std::nullopt;
    }
    if (!absl::ConsumePrefix(text, marks_.end)) return Result::kBroken;
    if (!members_.BeginCall(name_, out)) return Result::kBroken;
    EndCall(out);
    return Result::kEnd;
  }

  // Keeps what stands before the mark, and takes the mark. kMore if it is not there yet.
  std::optional<Result> Keep(absl::string_view mark, absl::string_view* text) {
    const size_t at = text->find(mark);
    const bool found = at != absl::string_view::npos;
    const size_t size = found ? at : text->size() - HeldBytes(*text, mark);
    absl::StrAppend(&kept_, text->substr(0, size));
    text->remove_prefix(found ? size + mark.size() : size);
    if (!found) return Result::kMore;
    return std::nullopt;
  }

  std::optional<Result> ReadKey(absl::string_view* text) {
    if (const auto more = Keep(marks_.after_key, text)) return more;
    key_ = std::exchange(kept_, "");
    if (key_.empty() || !IsUtf8(key_)) return Result::kBroken;
    state_ = State::kBeforeValue;
    return std::nullopt;
  }

  std::optional<Result> ReadBeforeValue(absl::string_view* text, CallWriter& out) {
    if (!marks_.before_value.empty()) *text = absl::StripLeadingAsciiWhitespace(*text);
    if (IsProperPrefix(*text, marks_.before_value)) return Result::kMore;
    if (!absl::ConsumePrefix(text, marks_.before_value)) return Result::kBroken;
    if (!members_.BeginCall(name_, out)) return Result::kBroken;
    types_ = TypesOf(parameters_, key_);
    kept_.clear();
    json_ = JsonExtent();
    json_begun_ = false;
    if (types_ != json::kStringType) {
      state_ = (types_ & json::kStringType) == 0 ? State::kJson : State::kBare;
      return std::nullopt;
    }
    members_.BeginMember(key_, out);
    string_.Begin();
    state_ = marks_.lines ? State::kLine : State::kString;
    return std::nullopt;
  }

  std::optional<Result> ReadString(absl::string_view* text, CallWriter& out) {
    const size_t at = text->find(marks_.after_value);
    const bool found = at != absl::string_view::npos;
    absl::string_view piece =
        text->substr(0, found ? at : text->size() - HeldBytes(*text, marks_.after_value));
    const size_t size = piece.size();
    if (marks_.lines) absl::ConsumeSuffix(&piece, "\n");
    bool is_text = true;
    size_t taken = 0;
    while (taken < piece.size() && is_text) {
      is_text = string_.Add(piece[taken]);
      if (is_text) ++taken;
    }
    is_text = is_text && (!found || string_.End());
    members_.Write(string_.Take(), out);
    if (!is_text || !found) {
      text->remove_prefix(taken);
      return is_text ? Result::kMore : Result::kBroken;
    }
    text->remove_prefix(size + marks_.after_value.size());
    state_ = State::kGap;
    return std::nullopt;
  }

  // A mark within JSON does not end the value.
  std::optional<Result> ReadValue(absl::string_view* text, CallWriter& out) {
    while (state_ == State::kJson && !text->empty()) {
      const char c = text->front();
      if (!json_begun_ && !absl::ascii_isspace(c)) {
        json_begun_ = true;
        if (c != '{' && c != '[' && c != '"') {
          state_ = State::kBare;
          break;
        }
      }
      kept_ += c;
      text->remove_prefix(1);
      if (json_begun_ && json_.Push(c)) state_ = State::kBare;
    }
    if (state_ == State::kJson) return Result::kMore;
    if (const auto more = Keep(marks_.after_value, text)) return more;
    absl::string_view value = kept_;
    if (marks_.lines) {
      absl::ConsumePrefix(&value, "\n");
      absl::ConsumeSuffix(&value, "\n");
    }
    if (!IsUtf8(value)) return Result::kBroken;
    members_.BeginMember(key_, out);
    if (!members_.WriteValue(BareValue(value, types_), out)) return Result::kBroken;
    kept_.clear();
    state_ = State::kGap;
    return std::nullopt;
  }

  void EndCall(CallWriter& out) {
    members_.EndCall(out);
    in_call_ = false;
  }

  const XmlMarks marks_;
  const JsonValue* const tools_;
  State state_ = State::kName;
  MemberWriter members_;
  std::string name_;
  const JsonValue* parameters_ = nullptr;
  std::string key_;
  uint32_t types_ = json::kAnyType;
  std::string kept_;  // of a name, a key or a value that comes out whole
  JsonExtent json_;   // of such a value
  bool json_begun_ = false;
  StringWriter string_;
};

}  // namespace

std::unique_ptr<CallReader> NewXmlCallReader(ToolCallFormat format, const JsonValue* tools) {
  return std::make_unique<XmlCallReader>(
      format == ToolCallFormat::kQwenXml ? kQwenMarks : kGlmMarks, tools);
}

}  // namespace baton::chat
