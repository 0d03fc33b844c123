#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/utf8.h"
#include "common/chat/bare_calls.h"
#include "common/chat/markers.h"

namespace baton::chat {
namespace {

using JsonValue = json::Value;

// Values nest at most so deep, as those of JSON do, whose outermost object is the arguments.
constexpr int kMaxNesting = 63;

// Takes what stands before `mark`, and the mark; nullopt if there is none.
std::optional<absl::string_view> Before(absl::string_view mark, absl::string_view* text) {
  const size_t at = text->find(mark);
  if (at == absl::string_view::npos) return std::nullopt;
  const absl::string_view before = text->substr(0, at);
  text->remove_prefix(at + mark.size());
  return before;
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
    if (!IsBareName(name)) return std::nullopt;
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
    absl::flat_hash_map<std::string, size_t> indices;
    while (!Take("}")) {
      std::optional<std::string> key = Key(depth);
      if (!key || !Take(":")) return std::nullopt;
      std::optional<JsonValue> value = Parse(depth + 1);
      if (!value) return std::nullopt;
      const auto [found, is_new] = indices.try_emplace(*key, object.items.size());
      if (is_new) {
        json::AddMember(*key, *std::move(value), &object);
      } else {
        object.items[found->second] = *std::move(value);  // the last value of a key counts
      }
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

// What differs between [f(a="x", b=1), g()] and call:f{a:<|"|>x<|"|>,b:1}.
struct LiteralMarks {
  absl::string_view begin;
  char open;
  char close;
  absl::string_view after_key;  // one of these ends a bare key
  char separator;               // between a key and its value
  absl::string_view quote;      // of strings without escapes; empty if there are none
  bool list;                    // calls have commas between them, and a bracket behind them
  absl::string_view end;
};
constexpr LiteralMarks kPythonMarks = {"[", '(', ')', "=,)", '=', "", true, "<|tool_call_end|>"};
constexpr LiteralMarks kGemmaMarks = {"call:", '{',      '}',   ":,}",
                                      ':',     "<|\"|>", false, "<tool_call|>"};

class LiteralCallReader final : public CallReader {
 public:
  explicit LiteralCallReader(const LiteralMarks& marks) : marks_(marks) {}

  Result Read(absl::string_view* text, CallWriter& out) override {
    for (;;) {
      const std::optional<Result> result = Step(text, out);
      if (result) return *result;
    }
  }

 private:
  enum class State : uint8_t {
    kBegin,
    kName,
    kKeyOrEnd,
    kBareKey,
    kQuotedKey,
    kSeparator,
    kValue,
    kString,
    kNested,
    kWord,
    kAfterValue,
    kAfterCall,
    kEnd,
  };

  // Returns nullopt if it has taken something, or is in another state.
  std::optional<Result> Step(absl::string_view* text, CallWriter& out) {
    const bool skips = state_ != State::kString && state_ != State::kNested &&
                       state_ != State::kWord && state_ != State::kQuotedKey;
    if (skips && kept_.empty()) *text = absl::StripLeadingAsciiWhitespace(*text);
    if (text->empty()) return Result::kMore;
    const char c = text->front();
    switch (state_) {
      case State::kBegin:
        return Take(marks_.begin, State::kName, text);
      case State::kName:
        return ReadName(text);
      case State::kKeyOrEnd:
        if (c == marks_.close) return EndCall(text, out);
        if (!marks_.quote.empty() && IsProperPrefix(*text, marks_.quote)) return Result::kMore;
        state_ = !marks_.quote.empty() && BeginsQuoted(*text) ? State::kQuotedKey : State::kBareKey;
        return std::nullopt;
      case State::kBareKey:
        if (!absl::StrContains(marks_.after_key, c)) return KeepByte(text);
        key_ = std::string(absl::StripAsciiWhitespace(std::exchange(kept_, "")));
        state_ = State::kSeparator;
        return IsBareName(key_) && IsUtf8(key_) ? std::nullopt : std::optional(Result::kBroken);
      case State::kQuotedKey:
        return ReadKept(text, out);
      case State::kSeparator:
        return Take(absl::string_view(&marks_.separator, 1), State::kValue, text);
      case State::kValue:
        return BeginValue(text, out);
      case State::kString:
        return ReadString(text, out);
      case State::kNested:
        return ReadKept(text, out);
      case State::kWord:
        if (!absl::StrContains(",])} \t\r\n", c)) return KeepByte(text);
        return EndValue(out);
      case State::kAfterValue:
        if (c == marks_.close) return EndCall(text, out);
        return Take(",", State::kKeyOrEnd, text);
      case State::kAfterCall:
        if (c == ',') return Take(",", State::kName, text);
        return Take("]", State::kEnd, text);
      case State::kEnd: {
        const std::optional<Result> taken = Take(marks_.end, State::kEnd, text);
        return taken ? taken : Result::kEnd;
      }
    }
    return Result::kBroken;
  }

  std::optional<Result> Take(absl::string_view mark, State next, absl::string_view* text) {
    if (IsProperPrefix(*text, mark)) return Result::kMore;
    if (!absl::ConsumePrefix(text, mark)) return Result::kBroken;
    state_ = next;
    return std::nullopt;
  }

  std::optional<Result> KeepByte(absl::string_view* text) {
    kept_ += text->front();
    text->remove_prefix(1);
    return std::nullopt;
  }

  std::optional<Result> ReadName(absl::string_view* text) {
    in_call_ = true;
    const char c = text->front();
    if (c == '<' || c == '>' || kept_.size() == kMaxHeaderBytes) return Result::kBroken;
    if (c != marks_.open) return KeepByte(text);
    text->remove_prefix(1);
    name_ = std::string(absl::StripAsciiWhitespace(std::exchange(kept_, "")));
    state_ = State::kKeyOrEnd;
    return IsBareName(name_) ? std::nullopt : std::optional(Result::kBroken);
  }

  bool BeginsQuoted(absl::string_view text) const {
    return text[0] == '"' || text[0] == '\'' ||
           (!marks_.quote.empty() && absl::StartsWith(text, marks_.quote));
  }

  std::optional<Result> BeginValue(absl::string_view* text, CallWriter& out) {
    if (!marks_.quote.empty() && IsProperPrefix(*text, marks_.quote)) return Result::kMore;
    const char c = text->front();
    if (c == '[' || c == '(' || c == '{') {
      state_ = State::kNested;
      return members_.BeginCall(name_, out) ? std::nullopt : std::optional(Result::kBroken);
    }
    if (!BeginsQuoted(*text)) {
      state_ = State::kWord;
      return std::nullopt;
    }
    if (!members_.BeginCall(name_, out)) return Result::kBroken;
    members_.BeginMember(key_, out);
    quote_ = c == '<' ? std::string(marks_.quote) : std::string(1, c);
    text->remove_prefix(quote_.size());
    string_.Begin();
    state_ = State::kString;
    return std::nullopt;
  }

  // Strings with a quote of one byte have the escapes that JSON and Python share, and \'; other
  // backslashes stay.
  std::optional<Result> ReadString(absl::string_view* text, CallWriter& out) {
    std::optional<Result> result;
    const bool has_escapes = quote_.size() == 1;
    while (!result) {
      if (text->empty() || IsProperPrefix(*text, quote_)) {
        result = Result::kMore;
      } else if (absl::StartsWith(*text, quote_)) {
        if (!string_.End()) {
          result = Result::kBroken;
          continue;
        }
        text->remove_prefix(quote_.size());
        break;
      } else if (!has_escapes || text->front() != '\\') {
        if (!string_.Add(text->front())) {
          result = Result::kBroken;
        } else {
          text->remove_prefix(1);
        }
      } else {
        result = ReadEscape(text);
      }
    }
    members_.Write(string_.Take(), out);
    if (!result) state_ = State::kAfterValue;
    return result;
  }

  std::optional<Result> ReadEscape(absl::string_view* text) {
    if (text->size() == 1) return Result::kMore;
    const char next = (*text)[1];
    const bool is_escape = absl::StrContains("\"\\/bfnrtu", next);
    const bool is_added = next == '\'' ? string_.Add(next)
                          : is_escape  ? string_.AddJson(text->substr(0, 2))
                                       : string_.Add('\\');
    if (!is_added) return Result::kBroken;
    text->remove_prefix(next == '\'' || is_escape ? 2 : 1);
    return std::nullopt;
  }

  // Keeps a quoted key, or a value with brackets, up to its end.
  std::optional<Result> ReadKept(absl::string_view* text, CallWriter& out) {
    while (!text->empty()) {
      const std::string& quote = open_quote_;
      if (!quote.empty() && escaped_) {
        escaped_ = false;
        KeepByte(text);
        continue;
      }
      const absl::string_view mark = quote.empty() ? marks_.quote : absl::string_view(quote);
      if (!mark.empty() && IsProperPrefix(*text, mark)) return Result::kMore;
      if (!quote.empty()) {
        if (!absl::ConsumePrefix(text, quote)) {
          escaped_ = quote.size() == 1 && text->front() == '\\';
          KeepByte(text);
          continue;
        }
        absl::StrAppend(&kept_, quote);
        open_quote_.clear();
      } else if (BeginsQuoted(*text)) {
        open_quote_ = text->front() == '<' ? std::string(marks_.quote) : std::string(1, (*text)[0]);
        absl::StrAppend(&kept_, open_quote_);
        text->remove_prefix(open_quote_.size());
        continue;
      } else {
        const char c = text->front();
        if (c == '[' || c == '(' || c == '{') ++depth_;
        if (c == ']' || c == ')' || c == '}') --depth_;
        if (depth_ > kMaxNesting) return Result::kBroken;
        KeepByte(text);
      }
      if (depth_ > 0) continue;
      return state_ == State::kQuotedKey ? EndKey() : EndValue(out);
    }
    return Result::kMore;
  }

  std::optional<JsonValue> Kept() {
    const std::string text = std::exchange(kept_, "");
    if (!IsUtf8(text)) return std::nullopt;
    Literals literals(text, marks_.quote);
    std::optional<JsonValue> value = literals.Parse(/*depth=*/1);
    if (!literals.AtEnd()) return std::nullopt;
    return value;
  }

  std::optional<Result> EndKey() {
    const std::optional<JsonValue> key = Kept();
    if (!key) return Result::kBroken;
    key_ = key->scalar.text;
    state_ = State::kSeparator;
    return std::nullopt;
  }

  std::optional<Result> EndValue(CallWriter& out) {
    const std::optional<JsonValue> value = Kept();
    if (!value || !members_.BeginCall(name_, out)) return Result::kBroken;
    members_.BeginMember(key_, out);
    if (!members_.WriteValue(*value, out)) return Result::kBroken;
    state_ = State::kAfterValue;
    return std::nullopt;
  }

  std::optional<Result> EndCall(absl::string_view* text, CallWriter& out) {
    if (!members_.BeginCall(name_, out)) return Result::kBroken;
    text->remove_prefix(1);
    members_.EndCall(out);
    in_call_ = false;
    state_ = marks_.list ? State::kAfterCall : State::kEnd;
    return Result::kCallEnd;
  }

  const LiteralMarks marks_;
  State state_ = State::kBegin;
  MemberWriter members_;
  std::string name_;
  std::string key_;
  std::string kept_;  // of a name, a key or a value that comes out whole
  StringWriter string_;
  std::string quote_;  // of that string
  // These describe what is kept of a value with brackets.
  int depth_ = 0;
  std::string open_quote_;
  bool escaped_ = false;
};

}  // namespace

std::unique_ptr<CallReader> NewLiteralCallReader(ToolCallFormat format) {
  return std::make_unique<LiteralCallReader>(format == ToolCallFormat::kLfm2 ? kPythonMarks
                                                                             : kGemmaMarks);
}

}  // namespace baton::chat
