#include "common/chat/bare_calls.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/utf8.h"
#include "common/json/schema_types.h"

namespace baton::chat {
namespace {

using JsonValue = json::Value;

// Values nest at most so deep, as those of JSON do.
constexpr int kMaxNesting = 64;

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

// The last value of a key counts.
void SetMember(absl::string_view key, JsonValue value, JsonValue* object) {
  const auto found = std::find(object->keys.begin(), object->keys.end(), key);
  if (found == object->keys.end()) {
    json::AddMember(key, std::move(value), object);
  } else {
    object->items[static_cast<size_t>(found - object->keys.begin())] = std::move(value);
  }
}

JsonValue BareValue(absl::string_view text, uint32_t types) {
  if (types == json::kStringType) return json::TextValue(std::string(text));
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  const auto parsed = json::Parse(trimmed, "a value");
  if (parsed.ok() && (json::SchemaTypeOf(*parsed) & types) != 0) return *parsed;
  // Some models write Python's names.
  if ((types & json::kBooleanType) != 0 && (trimmed == "True" || trimmed == "False")) {
    return json::BoolValue(trimmed == "True");
  }
  if ((types & json::kNullType) != 0 && trimmed == "None") return JsonValue();
  return json::TextValue(std::string(text));
}

// The size of the JSON array, object or string that `text` begins with; npos if it has no end.
size_t JsonSize(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      --depth;
    }
    if (!in_string && depth <= 0) return i + 1;
  }
  return absl::string_view::npos;
}

bool IsName(absl::string_view name) {
  return !name.empty() && std::none_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isspace(c) || c == '<' || c == '>' || c == '{' || c == '(';
  });
}

// Takes what stands before `mark`, and the mark; nullopt if there is none.
std::optional<absl::string_view> Before(absl::string_view mark, absl::string_view* text) {
  const size_t at = text->find(mark);
  if (at == absl::string_view::npos) return std::nullopt;
  const absl::string_view before = text->substr(0, at);
  text->remove_prefix(at + mark.size());
  return before;
}

// Marks around keys and values. `after_name`: what may end the name besides the first mark.
struct XmlMarks {
  char after_name;
  bool needs_after_name;
  absl::string_view before_key;
  absl::string_view after_key;
  absl::string_view before_value;
  absl::string_view after_value;
  bool lines;  // values have lines of their own
};
constexpr XmlMarks kQwenMarks = {'>', true, "<parameter=", ">", "", "</parameter>", true};
constexpr XmlMarks kGlmMarks = {'\n',          false,          "<arg_key>", "</arg_key>",
                                "<arg_value>", "</arg_value>", false};

BareCallsResult ReadXml(const XmlMarks& marks, absl::string_view text, const JsonValue* tools,
                        std::vector<BareCall>* calls) {
  size_t name_end = std::min(text.find(marks.after_name), text.find(marks.before_key));
  if (name_end == absl::string_view::npos) name_end = text.size();
  const absl::string_view name = absl::StripAsciiWhitespace(text.substr(0, name_end));
  text.remove_prefix(name_end);
  const bool has_after_name = absl::ConsumePrefix(&text, absl::string_view(&marks.after_name, 1));
  if (!IsName(name) || (marks.needs_after_name && !has_after_name)) return BareCallsResult::kNone;
  const JsonValue* const parameters = ParametersOf(tools, name);
  BareCall call = {std::string(name), json::ObjectValue()};
  for (;;) {
    text = absl::StripLeadingAsciiWhitespace(text);
    if (text.empty()) break;
    if (!absl::ConsumePrefix(&text, marks.before_key)) return BareCallsResult::kNone;
    const auto key = Before(marks.after_key, &text);
    if (!key || key->empty()) return BareCallsResult::kNone;
    if (!marks.before_value.empty()) text = absl::StripLeadingAsciiWhitespace(text);
    if (!absl::ConsumePrefix(&text, marks.before_value)) return BareCallsResult::kNone;
    const uint32_t types = TypesOf(parameters, *key);
    const absl::string_view json = absl::StripLeadingAsciiWhitespace(text);
    const bool is_json = (types & json::kStringType) == 0 && !json.empty() &&
                         (json[0] == '{' || json[0] == '[' || json[0] == '"');
    size_t from = 0;
    if (is_json) {
      const size_t size = JsonSize(json);
      if (size == absl::string_view::npos) return BareCallsResult::kIncomplete;
      from = text.size() - json.size() + size;
    }
    const size_t end = text.find(marks.after_value, from);
    if (end == absl::string_view::npos) return BareCallsResult::kIncomplete;
    absl::string_view value = text.substr(0, end);
    text.remove_prefix(end + marks.after_value.size());
    if (marks.lines) {
      absl::ConsumePrefix(&value, "\n");
      absl::ConsumeSuffix(&value, "\n");
    }
    SetMember(*key, BareValue(value, types), &call.arguments);
  }
  calls->push_back(std::move(call));
  return BareCallsResult::kCalls;
}

// Literals of Python, or of Gemma 4; numbers and the three constants are those of JSON, too.
class Literals {
 public:
  Literals(absl::string_view text, absl::string_view quote) : rest_(text), quote_(quote) {}

  bool Take(absl::string_view text) {
    Skip();
    return absl::ConsumePrefix(&rest_, text);
  }
  bool AtEnd() {
    Skip();
    return rest_.empty();
  }

  // A name up to one of the characters `ends`, which is not taken.
  std::optional<std::string> Name(absl::string_view ends) {
    Skip();
    const size_t size = rest_.find_first_of(ends);
    if (size == absl::string_view::npos) return std::nullopt;
    const absl::string_view name = absl::StripAsciiWhitespace(rest_.substr(0, size));
    if (!IsName(name)) return std::nullopt;
    rest_.remove_prefix(size);
    return std::string(name);
  }

  std::optional<JsonValue> Parse(int depth = 0) {
    if (depth > kMaxNesting) return std::nullopt;
    Skip();
    if (rest_.empty()) return std::nullopt;
    if (!quote_.empty() && absl::ConsumePrefix(&rest_, quote_)) {
      const auto text = Before(quote_, &rest_);
      if (!text) return std::nullopt;
      return json::TextValue(std::string(*text));
    }
    if (rest_[0] == '"' || rest_[0] == '\'') return Quoted();
    if (Take("[")) return List("]", depth);
    if (Take("(")) return List(")", depth);
    if (Take("{")) return Object(depth);
    return Word();
  }

  std::optional<JsonValue> Object(int depth) {
    JsonValue object = json::ObjectValue();
    while (!Take("}")) {
      std::optional<std::string> key = Key(depth);
      if (!key || !Take(":")) return std::nullopt;
      std::optional<JsonValue> value = Parse(depth + 1);
      if (!value) return std::nullopt;
      SetMember(*key, *std::move(value), &object);
      if (Take(",")) continue;
      if (!Take("}")) return std::nullopt;
      break;
    }
    return object;
  }

 private:
  void Skip() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }

  std::optional<std::string> Key(int depth) {
    Skip();
    const bool is_quoted = absl::StartsWith(rest_, "\"") || absl::StartsWith(rest_, "'") ||
                           (!quote_.empty() && absl::StartsWith(rest_, quote_));
    if (!is_quoted) return Name(":,}");
    const std::optional<JsonValue> text = Parse(depth + 1);
    if (!text) return std::nullopt;
    return text->scalar.text;
  }

  std::optional<JsonValue> List(absl::string_view end, int depth) {
    JsonValue list = json::ArrayValue();
    while (!Take(end)) {
      std::optional<JsonValue> item = Parse(depth + 1);
      if (!item) return std::nullopt;
      list.items.push_back(*std::move(item));
      if (Take(",")) continue;
      if (!Take(end)) return std::nullopt;
      break;
    }
    return list;
  }

  std::optional<JsonValue> Word() {
    const size_t size = std::min(rest_.find_first_of(",])} \t\r\n"), rest_.size());
    const absl::string_view word = rest_.substr(0, size);
    rest_.remove_prefix(size);
    if (word == "True" || word == "False") return json::BoolValue(word == "True");
    if (word == "None") return JsonValue();
    const auto parsed = json::Parse(word, "a literal");
    if (!parsed.ok()) return std::nullopt;
    return *parsed;
  }

  // A string with the escapes that JSON and Python share, and \'; other backslashes stay.
  std::optional<JsonValue> Quoted() {
    const char quote = rest_[0];
    std::string json = "\"";
    for (size_t i = 1; i < rest_.size(); ++i) {
      const char c = rest_[i];
      if (c == quote) {
        rest_.remove_prefix(i + 1);
        const auto parsed = json::Parse(absl::StrCat(json, "\""), "a string");
        if (!parsed.ok()) return std::nullopt;
        return *parsed;
      }
      if (c == '\\' && i + 1 < rest_.size()) {
        const char next = rest_[++i];
        if (next == '\'') {
          json += '\'';
        } else {
          const bool is_escape = absl::StrContains("\"\\/bfnrtu", next);
          absl::StrAppend(&json, is_escape ? "\\" : "\\\\", absl::string_view(&next, 1));
        }
      } else if (c == '"') {
        json += "\\\"";
      } else if (static_cast<unsigned char>(c) < ' ') {
        absl::StrAppend(&json, "\\u00", absl::Hex(c, absl::kZeroPad2));
      } else {
        json += c;
      }
    }
    return std::nullopt;
  }

  absl::string_view rest_;
  const absl::string_view quote_;
};

// [f(a="x", b=1), g()]
BareCallsResult ReadPython(absl::string_view text, std::vector<BareCall>* calls) {
  Literals literals(text, /*quote=*/"");
  std::vector<BareCall> read;
  if (!literals.Take("[")) return BareCallsResult::kNone;
  do {
    std::optional<std::string> name = literals.Name("(");
    if (!name || !literals.Take("(")) return BareCallsResult::kNone;
    BareCall call = {*std::move(name), json::ObjectValue()};
    while (!literals.Take(")")) {
      const std::optional<std::string> key = literals.Name("=,)");
      if (!key || !literals.Take("=")) return BareCallsResult::kIncomplete;
      std::optional<JsonValue> value = literals.Parse();
      if (!value) return BareCallsResult::kIncomplete;
      SetMember(*key, *std::move(value), &call.arguments);
      if (literals.Take(",")) continue;
      if (!literals.Take(")")) return BareCallsResult::kIncomplete;
      break;
    }
    read.push_back(std::move(call));
  } while (literals.Take(","));
  if (!literals.Take("]") || !literals.AtEnd()) return BareCallsResult::kIncomplete;
  std::move(read.begin(), read.end(), std::back_inserter(*calls));
  return BareCallsResult::kCalls;
}

// call:f{a:<|"|>x<|"|>,b:1}
BareCallsResult ReadGemma(absl::string_view text, std::vector<BareCall>* calls) {
  Literals literals(text, "<|\"|>");
  if (!literals.Take("call:")) return BareCallsResult::kNone;
  std::optional<std::string> name = literals.Name("{");
  if (!name || !literals.Take("{")) return BareCallsResult::kNone;
  std::optional<JsonValue> arguments = literals.Object(0);
  if (!arguments || !literals.AtEnd()) return BareCallsResult::kIncomplete;
  calls->push_back({*std::move(name), *std::move(arguments)});
  return BareCallsResult::kCalls;
}

}  // namespace

absl::string_view BareCallEnd(ToolCallFormat format) {
  switch (format) {
    case ToolCallFormat::kQwenXml:
      return "</function>";
    case ToolCallFormat::kGlm:
      return "</tool_call>";
    case ToolCallFormat::kLfm2:
      return "<|tool_call_end|>";
    case ToolCallFormat::kGemma4:
      return "<tool_call|>";
    default:
      return "";
  }
}

BareCallsResult ReadBareCalls(ToolCallFormat format, absl::string_view text, const JsonValue* tools,
                              std::vector<BareCall>* calls) {
  // An answer that ends within a character.
  if (!IsUtf8(text)) return BareCallsResult::kNone;
  switch (format) {
    case ToolCallFormat::kQwenXml:
      return ReadXml(kQwenMarks, text, tools, calls);
    case ToolCallFormat::kGlm:
      return ReadXml(kGlmMarks, text, tools, calls);
    case ToolCallFormat::kLfm2:
      return ReadPython(text, calls);
    case ToolCallFormat::kGemma4:
      return ReadGemma(text, calls);
    default:
      return BareCallsResult::kNone;
  }
}

}  // namespace baton::chat
