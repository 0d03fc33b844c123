#include "common/json/scanner.h"

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/json/json.h"

namespace baton::json {
namespace {

constexpr size_t kMaxScannedDepth = 64;  // as Parse has it

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

Scanner::Event Scanner::Push(char c) {
  switch (state_) {
    case State::kString:
      return PushInString(c);
    case State::kEscape:
      return PushEscape(c);
    case State::kHex:
      return PushHex(c);
    case State::kLowSurrogate:
    case State::kLowSurrogateU: {
      const bool is_slash = state_ == State::kLowSurrogate;
      if (is_key_) key_ += c;
      state_ = is_slash ? State::kLowSurrogateU : State::kHex;
      return c == (is_slash ? '\\' : 'u') ? Event::kNone : Event::kBroken;
    }
    case State::kNumber:
      return PushInNumber(c);
    case State::kLiteral:
      if (c != literal_.front()) return Event::kBroken;
      literal_.remove_prefix(1);
      if (literal_.empty()) state_ = State::kAfterValue;
      return Event::kNone;
    default:
      break;
  }
  if (IsSpace(c)) return Event::kNone;
  switch (state_) {
    case State::kValueOrEnd:
      if (c == ']') return Close(c);
      [[fallthrough]];
    case State::kValue:
      return BeginValue(c);
    case State::kKeyOrEnd:
      if (c == '}') return Close(c);
      [[fallthrough]];
    case State::kKey:
      if (c != '"') return Event::kBroken;
      state_ = State::kString;
      is_key_ = true;
      key_ = "\"";
      return Event::kStringBegin;
    case State::kColon:
      state_ = State::kValue;
      return c == ':' ? Event::kNone : Event::kBroken;
    case State::kAfterValue:
      if (c != ',') return Close(c);
      state_ = levels_.back().is_object ? State::kKey : State::kValue;
      return Event::kComma;
    default:
      return Event::kBroken;
  }
}

Scanner::Event Scanner::BeginValue(char c) {
  const bool is_container = c == '{' || c == '[';
  if (levels_.empty() && !is_container) return Event::kBroken;
  if (++values_ > kMaxValues) return Event::kBroken;
  if (is_container) {
    if (levels_.size() == kMaxScannedDepth) return Event::kBroken;
    levels_.push_back({c == '{', {}});
    state_ = c == '{' ? State::kKeyOrEnd : State::kValueOrEnd;
    return c == '{' ? Event::kObjectBegin : Event::kArrayBegin;
  }
  if (c == '"') {
    state_ = State::kString;
    is_key_ = false;
    return Event::kStringBegin;
  }
  for (const absl::string_view literal : {"true", "false", "null"}) {
    if (c != literal.front()) continue;
    state_ = State::kLiteral;
    literal_ = literal.substr(1);
    return Event::kNone;
  }
  if (c != '-' && !absl::ascii_isdigit(c)) return Event::kBroken;
  state_ = State::kNumber;
  number_state_ = c == '-' ? Number::kMinus : c == '0' ? Number::kZero : Number::kInteger;
  number_ = std::string(1, c);
  return Event::kNone;
}

Scanner::Event Scanner::Close(char c) {
  if (c != (levels_.back().is_object ? '}' : ']')) return Event::kBroken;
  levels_.pop_back();
  state_ = levels_.empty() ? State::kEnded : State::kAfterValue;
  return Event::kEnd;
}

Scanner::Event Scanner::PushInString(char c) {
  if (is_key_) key_ += c;
  const auto byte = static_cast<unsigned char>(c);
  utf8_ = NextUtf8State(utf8_, byte);
  if (utf8_ == Utf8State::kInvalid) return Event::kBroken;
  partial_bytes_ = utf8_ == Utf8State::kCharacter ? 0 : partial_bytes_ + 1;
  if (byte < 0x20) return Event::kBroken;
  if (c == '"') return EndString();
  if (c == '\\') state_ = State::kEscape;
  return Event::kNone;
}

Scanner::Event Scanner::PushEscape(char c) {
  if (is_key_) key_ += c;
  state_ = State::kString;
  if (c == 'u') {
    state_ = State::kHex;
    hex_digits_ = 0;
    hex_ = 0;
    return Event::kNone;
  }
  return absl::StrContains("\"\\/bfnrt", c) ? Event::kNone : Event::kBroken;
}

// A character beyond U+FFFF is two escapes, its surrogates.
Scanner::Event Scanner::PushHex(char c) {
  if (!absl::ascii_isxdigit(c)) return Event::kBroken;
  if (is_key_) key_ += c;
  const char lower = absl::ascii_tolower(c);
  hex_ = hex_ * 16 + static_cast<uint32_t>(lower <= '9' ? lower - '0' : lower - 'a' + 10);
  if (++hex_digits_ < 4) return Event::kNone;
  const bool is_low = hex_ >= 0xDC00 && hex_ <= 0xDFFF;
  if (is_low != std::exchange(needs_low_surrogate_, false)) return Event::kBroken;
  hex_digits_ = 0;
  state_ = State::kString;
  if (hex_ >= 0xD800 && hex_ <= 0xDBFF) {
    needs_low_surrogate_ = true;
    state_ = State::kLowSurrogate;
  }
  hex_ = 0;
  return Event::kNone;
}

Scanner::Event Scanner::EndString() {
  state_ = State::kAfterValue;
  if (!is_key_) return Event::kStringEnd;
  state_ = State::kColon;
  std::string key = std::exchange(key_, "");
  if (absl::StrContains(key, '\\')) {
    const absl::StatusOr<Value> parsed = Parse(key, "a key");
    if (!parsed.ok()) return Event::kBroken;
    key = absl::StrCat("\"", parsed->scalar.text, "\"");
  }
  return levels_.back().keys.insert(std::move(key)).second ? Event::kStringEnd : Event::kBroken;
}

Scanner::Event Scanner::PushInNumber(char c) {
  const bool is_digit = absl::ascii_isdigit(c);
  bool goes_on = is_digit;
  switch (number_state_) {
    case Number::kMinus:
      if (!is_digit) return Event::kBroken;
      number_state_ = c == '0' ? Number::kZero : Number::kInteger;
      break;
    case Number::kZero:
      if (is_digit) return Event::kBroken;
      [[fallthrough]];
    case Number::kInteger:
      goes_on = is_digit || c == '.' || c == 'e' || c == 'E';
      if (c == '.') number_state_ = Number::kDot;
      if (c == 'e' || c == 'E') number_state_ = Number::kE;
      break;
    case Number::kDot:
      if (!is_digit) return Event::kBroken;
      number_state_ = Number::kFraction;
      break;
    case Number::kFraction:
      goes_on = is_digit || c == 'e' || c == 'E';
      if (goes_on && !is_digit) number_state_ = Number::kE;
      break;
    case Number::kE:
      goes_on = is_digit || c == '+' || c == '-';
      if (!goes_on) return Event::kBroken;
      number_state_ = is_digit ? Number::kExponent : Number::kESign;
      break;
    case Number::kESign:
      if (!is_digit) return Event::kBroken;
      number_state_ = Number::kExponent;
      break;
    case Number::kExponent:
      break;
  }
  if (goes_on) {
    number_ += c;
    return Event::kNone;
  }
  double value = 0;
  if (!absl::SimpleAtod(number_, &value) || !std::isfinite(value)) return Event::kBroken;
  state_ = State::kAfterValue;
  return Push(c);
}

std::string Scanner::Closers() const {
  std::string closers;
  for (auto level = levels_.rbegin(); level != levels_.rend(); ++level) {
    closers += level->is_object ? '}' : ']';
  }
  return closers;
}

std::string WholeMembers(absl::string_view text) {
  text = absl::StripLeadingAsciiWhitespace(text);
  if (!absl::StartsWith(text, "{")) return "{}";
  Scanner scanner;
  size_t whole = 0;  // bytes in front of the brackets that close what is open there
  std::string closers;
  for (size_t i = 0; i < text.size() && !scanner.ended(); ++i) {
    const Scanner::Event event = scanner.Push(text[i]);
    if (event == Scanner::Event::kBroken) break;
    const bool ends_value = event == Scanner::Event::kStringEnd && !scanner.is_key();
    if (!ends_value && event != Scanner::Event::kEnd && event != Scanner::Event::kComma &&
        event != Scanner::Event::kObjectBegin && event != Scanner::Event::kArrayBegin) {
      continue;
    }
    whole = event == Scanner::Event::kComma ? i : i + 1;
    closers = scanner.Closers();
  }
  return absl::StrCat(text.substr(0, whole), closers);
}

}  // namespace baton::json
