#include "common/json/reader.h"

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/base/utf8.h"

namespace baton::json {
namespace {

// A string's bytes that stand for themselves, other than those of characters beyond ASCII.
bool IsPlain(unsigned char byte) {
  return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\';
}

// Whether all eight bytes are plain. May be false where they are, never true where they are not.
bool AllPlain(const char* bytes) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  constexpr uint64_t kHigh = 0x8080808080808080;
  uint64_t word;
  std::memcpy(&word, bytes, sizeof(word));
  const auto has_zero = [](uint64_t x) { return (x - kOnes) & ~x; };
  const uint64_t control = (word - 0x20 * kOnes) & ~word;
  const uint64_t quote = has_zero(word ^ ('"' * kOnes));
  const uint64_t backslash = has_zero(word ^ ('\\' * kOnes));
  return ((word | control | quote | backslash) & kHigh) == 0;
}

}  // namespace

Reader::Result Reader::Read() {
  absl::ConsumePrefix(&text_, "\xEF\xBB\xBF");
  const bool read = ReadDocument();
  return read ? Result::kRead : stopped_ ? Result::kStopped : Result::kMalformed;
}

void Reader::SkipSpace() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
    ++at_;
  }
}

bool Reader::Take(char wanted) {
  SkipSpace();
  if (at_ >= text_.size() || text_[at_] != wanted) return false;
  ++at_;
  return true;
}

bool Reader::ReadDocument() {
  if (!ReadValue()) return false;
  while (!open_.empty()) {
    const bool in_array = open_.back();
    if (Take(',')) {
      if (!in_array && !BeginMember()) return false;
      if (!ReadValue()) return false;
    } else if (Take(in_array ? ']' : '}')) {
      open_.pop_back();
      if (!Pass(events_.OnEnd())) return false;
    } else {
      return false;
    }
  }
  SkipSpace();
  return Peek() == '\0';
}

// A scalar, or the beginning of an array or object up to its first scalar; also an empty one.
bool Reader::ReadValue() {
  while (true) {
    SkipSpace();
    switch (Peek()) {
      case '[':
      case '{': {
        const bool is_array = text_[at_++] == '[';
        if (!Pass(events_.OnBegin(is_array))) return false;
        if (Take(is_array ? ']' : '}')) return Pass(events_.OnEnd());
        open_.push_back(is_array);
        if (!is_array && !BeginMember()) return false;
        continue;
      }
      case '"': {
        Scalar scalar{.kind = Scalar::Kind::kString};
        return ReadString(&scalar.text) && Pass(events_.OnValue(std::move(scalar)));
      }
      case 't':
        return ReadLiteral("true", {.kind = Scalar::Kind::kBool, .boolean = true});
      case 'f':
        return ReadLiteral("false", {.kind = Scalar::Kind::kBool, .boolean = false});
      case 'n':
        return ReadLiteral("null", {});
      default:
        return ReadNumber();
    }
  }
}

bool Reader::ReadLiteral(absl::string_view literal, Scalar scalar) {
  if (!absl::StartsWith(text_.substr(at_), literal)) return false;
  at_ += literal.size();
  return Pass(events_.OnValue(std::move(scalar)));
}

// A key and its colon.
bool Reader::BeginMember() {
  SkipSpace();
  if (Peek() != '"') return false;
  std::string name;
  return ReadString(&name) && Pass(events_.OnKey(std::move(name))) && Take(':');
}

bool Reader::ReadNumber() {
  const size_t begin = at_;
  const auto take_digits = [this] {
    const size_t first = at_;
    while (Peek() >= '0' && Peek() <= '9') ++at_;
    return at_ > first;
  };
  const bool negative = Peek() == '-';
  if (negative) ++at_;
  if (Peek() == '0') {
    ++at_;
  } else if (!take_digits()) {
    return false;
  }
  bool whole = true;
  if (Peek() == '.') {
    ++at_;
    whole = false;
    if (!take_digits()) return false;
  }
  if (Peek() == 'e' || Peek() == 'E') {
    ++at_;
    whole = false;
    if (Peek() == '+' || Peek() == '-') ++at_;
    if (!take_digits()) return false;
  }
  const absl::string_view digits = text_.substr(begin, at_ - begin);
  Scalar scalar{.kind = Scalar::Kind::kInteger};
  if (whole && absl::SimpleAtoi(digits, &scalar.integer)) {
    scalar.real = static_cast<double>(scalar.integer);
    return Pass(events_.OnValue(std::move(scalar)));
  }
  scalar = {.kind = Scalar::Kind::kReal};
  // strtod needs an end.
  scalar.real = std::strtod(std::string(digits).c_str(), nullptr);
  return std::isfinite(scalar.real) && Pass(events_.OnValue(std::move(scalar)));
}

// REQUIRES: the next byte is the quote at the beginning.
bool Reader::ReadString(std::string* out) {
  size_t begin = ++at_;  // of what is not in `out` yet
  while (true) {
    while (at_ + sizeof(uint64_t) <= text_.size() && AllPlain(text_.data() + at_)) {
      at_ += sizeof(uint64_t);
    }
    while (at_ < text_.size() && IsPlain(static_cast<unsigned char>(text_[at_]))) ++at_;
    if (at_ >= text_.size()) return false;
    const auto byte = static_cast<unsigned char>(text_[at_]);
    if (byte >= 0x80) {
      if (!SkipCharacter()) return false;
      continue;
    }
    out->append(text_.data() + begin, at_ - begin);
    ++at_;
    if (byte == '"') return true;
    if (byte != '\\' || !AppendEscaped(out)) return false;
    begin = at_;
  }
}

// One character beyond ASCII.
bool Reader::SkipCharacter() {
  Utf8State state = Utf8State::kCharacter;
  do {
    if (at_ >= text_.size()) return false;
    state = NextUtf8State(state, static_cast<unsigned char>(text_[at_++]));
    if (state == Utf8State::kInvalid) return false;
  } while (state != Utf8State::kCharacter);
  return true;
}

// What follows a backslash.
bool Reader::AppendEscaped(std::string* out) {
  const char escape = Peek();
  if (escape == '\0') return false;
  ++at_;
  constexpr absl::string_view kEscapes = "\"\\/bfnrt";
  constexpr absl::string_view kMeanings = "\"\\/\b\f\n\r\t";
  if (const size_t found = kEscapes.find(escape); found != absl::string_view::npos) {
    out->push_back(kMeanings[found]);
    return true;
  }
  char32_t c = 0;
  if (escape != 'u' || !ReadHex(&c)) return false;
  if (c >= 0xDC00 && c < 0xE000) return false;  // the second half of a pair without the first
  if (c >= 0xD800 && c < 0xDC00) {
    char32_t second = 0;
    if (!absl::StartsWith(text_.substr(at_), "\\u")) return false;
    at_ += 2;
    if (!ReadHex(&second) || second < 0xDC00 || second >= 0xE000) return false;
    c = 0x10000 + ((c - 0xD800) << 10) + (second - 0xDC00);
  }
  AppendUtf8(c, out);
  return true;
}

bool Reader::ReadHex(char32_t* unit) {
  *unit = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char digit = Peek();
    const int value = digit >= '0' && digit <= '9'   ? digit - '0'
                      : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                      : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10
                                                     : -1;
    if (value < 0) return false;
    *unit = *unit * 16 + static_cast<char32_t>(value);
  }
  return true;
}

}  // namespace baton::json
