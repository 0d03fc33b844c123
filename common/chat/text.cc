#include "common/chat/text.h"

#include <string.h>
#include <unicode/bytestream.h>
#include <unicode/casemap.h>
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::chat {
namespace {

bool IsLineBreak(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

// The byte at which the last code point starts. REQUIRES: not empty.
size_t LastCodePoint(absl::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && U8_IS_TRAIL(text[at])) --at;
  return at;
}

char32_t CodePointAt(absl::string_view text, size_t at) { return NextCodePoint(text, &at); }

bool InChars(absl::string_view chars, absl::string_view c) {
  return FindText(chars, c) != absl::string_view::npos;
}

template <class Map>
std::string MapCase(absl::string_view text, Map map) {
  std::string result;
  icu::StringByteSink<std::string> sink(&result, static_cast<int32_t>(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  map(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, error);
  return result;
}

std::string TitleOf(char32_t c) {
  std::string one;
  AppendCodePoint(c, &one);
  if (one.size() == 1) return absl::AsciiStrToUpper(one);
  return MapCase(one, [](icu::StringPiece piece, icu::ByteSink& sink, UErrorCode& error) {
    icu::CaseMap::utf8ToTitle("", 0, nullptr, piece, sink, nullptr, error);
  });
}

bool IsCased(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED); }

bool InClass(char32_t point, CharacterClass which) {
  const auto c = static_cast<UChar32>(point);
  const auto type = u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE);
  switch (which) {
    case CharacterClass::kAlpha:
      return (U_GET_GC_MASK(c) & U_GC_L_MASK) != 0;
    case CharacterClass::kDecimal:
      return type == U_NT_DECIMAL;
    case CharacterClass::kDigit:
      return type == U_NT_DECIMAL || type == U_NT_DIGIT;
    case CharacterClass::kNumeric:
      return type != U_NT_NONE;
    case CharacterClass::kAlphanumeric:
      return (U_GET_GC_MASK(c) & U_GC_L_MASK) != 0 || type != U_NT_NONE;
    case CharacterClass::kSpace:
      return IsSpace(point);
  }
  return false;
}

// The digits after the backslash of one escape; nullopt-like -1 if malformed.
int64_t HexDigits(absl::string_view text, size_t at, size_t count) {
  if (at + count > text.size()) return -1;
  int64_t value = -1;
  const char* const end = text.data() + at + count;
  const auto read = std::from_chars(text.data() + at, end, value, 16);
  return read.ptr == end && read.ec == std::errc() ? value : -1;
}

}  // namespace

char32_t NextCodePoint(absl::string_view text, size_t* position) {
  UChar32 c = 0;
  const char* const data = text.data();
  U8_NEXT(data, *position, text.size(), c);
  return static_cast<char32_t>(c);
}

void AppendCodePoint(char32_t c, std::string* out) {
  char bytes[4];
  size_t size = 0;
  U8_APPEND_UNSAFE(bytes, size, static_cast<UChar32>(c));
  out->append(bytes, size);
}

size_t CodePointCount(absl::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return !U8_IS_TRAIL(c); });
}

size_t ByteOfCodePoint(absl::string_view text, size_t index) {
  size_t at = 0;
  while (at < text.size() && (index > 0 || U8_IS_TRAIL(text[at]))) {
    ++at;
    if (at == text.size() || !U8_IS_TRAIL(text[at])) --index;
  }
  return at;
}

bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

absl::string_view StripLeft(absl::string_view text) {
  for (size_t at = 0; at < text.size();) {
    size_t next = at;
    if (!IsSpace(NextCodePoint(text, &next))) return text.substr(at);
    at = next;
  }
  return text.substr(text.size());
}

absl::string_view StripRight(absl::string_view text) {
  while (!text.empty()) {
    const size_t last = LastCodePoint(text);
    if (!IsSpace(CodePointAt(text, last))) break;
    text = text.substr(0, last);
  }
  return text;
}

absl::string_view StripChars(absl::string_view text, absl::string_view chars, bool left,
                             bool right) {
  while (left && !text.empty()) {
    size_t next = 0;
    NextCodePoint(text, &next);
    if (!InChars(chars, text.substr(0, next))) break;
    text.remove_prefix(next);
  }
  while (right && !text.empty()) {
    const size_t last = LastCodePoint(text);
    if (!InChars(chars, text.substr(last))) break;
    text = text.substr(0, last);
  }
  return text;
}

size_t FindText(absl::string_view text, absl::string_view wanted, size_t start) {
  if (start > text.size()) return absl::string_view::npos;
  if (wanted.empty()) return start;
  const void* found =
      memmem(text.data() + start, text.size() - start, wanted.data(), wanted.size());
  if (found == nullptr) return absl::string_view::npos;
  return static_cast<const char*>(found) - text.data();
}

size_t CountText(absl::string_view text, absl::string_view wanted) {
  if (wanted.empty()) return CodePointCount(text) + 1;
  size_t count = 0;
  for (size_t at = 0; (at = FindText(text, wanted, at)) != absl::string_view::npos;) {
    ++count;
    at += wanted.size();
  }
  return count;
}

void ReplaceText(absl::string_view text, absl::string_view from, int64_t max,
                 absl::FunctionRef<void(absl::string_view kept)> keep,
                 absl::FunctionRef<void()> replace) {
  size_t done = 0;
  for (int64_t count = 0; max < 0 || count < max; ++count) {
    if (from.empty()) {
      if (count > 0 && done == text.size()) break;
      size_t next = done;
      if (count > 0) NextCodePoint(text, &next);
      keep(text.substr(done, next - done));
      replace();
      done = next;
      continue;
    }
    const size_t found = FindText(text, from, done);
    if (found == absl::string_view::npos) break;
    keep(text.substr(done, found - done));
    replace();
    done = found + from.size();
  }
  keep(text.substr(done));
}

std::vector<absl::string_view> SplitText(absl::string_view text, absl::string_view separator,
                                         int64_t max, bool from_right) {
  std::vector<absl::string_view> parts;
  if (!from_right || max < 0) {
    while (max < 0 || static_cast<int64_t>(parts.size()) < max) {
      const size_t found = FindText(text, separator);
      if (found == absl::string_view::npos) break;
      parts.push_back(text.substr(0, found));
      text.remove_prefix(found + separator.size());
    }
    parts.push_back(text);
    return parts;
  }
  // The last `max` separators, which may lie otherwise than the first ones if they overlap.
  while (static_cast<int64_t>(parts.size()) < max) {
    const size_t found = text.rfind(separator);
    if (found == absl::string_view::npos) break;
    parts.push_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  parts.push_back(text);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<absl::string_view> SplitSpace(absl::string_view text, int64_t max, bool from_right) {
  std::vector<absl::string_view> parts;
  text = from_right ? StripRight(text) : StripLeft(text);
  while (!text.empty()) {
    if (max >= 0 && static_cast<int64_t>(parts.size()) == max) {
      parts.push_back(text);
      break;
    }
    size_t at = from_right ? text.size() : 0;
    while (from_right ? at > 0 : at < text.size()) {
      size_t next = from_right ? LastCodePoint(text.substr(0, at)) : at;
      const size_t start = next;
      const bool is_space = IsSpace(NextCodePoint(text, &next));
      if (is_space) break;
      at = from_right ? start : next;
    }
    parts.push_back(from_right ? text.substr(at) : text.substr(0, at));
    text = from_right ? StripRight(text.substr(0, at)) : StripLeft(text.substr(at));
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends) {
  std::vector<absl::string_view> lines;
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t line_end = at;
    const char32_t c = NextCodePoint(text, &at);
    if (!IsLineBreak(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(start, (keep_ends ? at : line_end) - start));
    start = at;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string UpperCase(absl::string_view text) {
  return MapCase(text, [](icu::StringPiece piece, icu::ByteSink& sink, UErrorCode& error) {
    icu::CaseMap::utf8ToUpper("", 0, piece, sink, nullptr, error);
  });
}

std::string LowerCase(absl::string_view text) {
  return MapCase(text, [](icu::StringPiece piece, icu::ByteSink& sink, UErrorCode& error) {
    icu::CaseMap::utf8ToLower("", 0, piece, sink, nullptr, error);
  });
}

std::string FoldCase(absl::string_view text) {
  return MapCase(text, [](icu::StringPiece piece, icu::ByteSink& sink, UErrorCode& error) {
    icu::CaseMap::utf8Fold(0, piece, sink, nullptr, error);
  });
}

std::string Capitalize(absl::string_view text) {
  if (text.empty()) return "";
  size_t next = 0;
  const char32_t first = NextCodePoint(text, &next);
  return absl::StrCat(TitleOf(first), LowerCase(text.substr(next)));
}

std::string TitleCase(absl::string_view text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t first = NextCodePoint(text, &at);
    result += TitleOf(first);
    if (!IsCased(first)) continue;
    const size_t rest = at;
    for (size_t next = at; next < text.size(); at = next) {
      if (!IsCased(NextCodePoint(text, &next))) break;
    }
    // A sigma's form depends on the letters before it, so the word is converted as a whole.
    const size_t first_bytes = LowerCase(text.substr(start, rest - start)).size();
    result += LowerCase(text.substr(start, at - start)).substr(first_bytes);
  }
  return result;
}

std::string TitleWords(absl::string_view text) {
  const auto splits = [](char32_t c) {
    return IsSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t first = NextCodePoint(text, &at);
    result += UpperCase(text.substr(start, at - start));
    if (splits(first)) continue;
    const size_t rest = at;
    for (size_t next = at; next < text.size(); at = next) {
      if (splits(NextCodePoint(text, &next))) break;
    }
    result += LowerCase(text.substr(rest, at - rest));
  }
  return result;
}

std::string EscapeHtml(absl::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&#34;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result.push_back(c);
    }
  }
  return result;
}

bool AllInClass(absl::string_view text, CharacterClass which) {
  for (size_t at = 0; at < text.size();) {
    if (!InClass(NextCodePoint(text, &at), which)) return false;
  }
  return !text.empty();
}

bool IsAllCase(absl::string_view text, bool upper) {
  bool found = false;
  for (size_t at = 0; at < text.size();) {
    const auto c = static_cast<UChar32>(NextCodePoint(text, &at));
    if (upper ? u_isULowercase(c) || u_istitle(c) : u_isUUppercase(c) || u_istitle(c)) return false;
    found = found || (upper ? u_isUUppercase(c) : u_isULowercase(c));
  }
  return found;
}

std::string QuotedLikePython(absl::string_view text) {
  const bool has_single = text.find('\'') != absl::string_view::npos;
  const char quote = has_single && text.find('"') == absl::string_view::npos ? '"' : '\'';
  std::string result(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    const char32_t c = NextCodePoint(text, &at);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      absl::StrAppend(&result, "\\", text.substr(start, 1));
    } else if (c == '\n' || c == '\r' || c == '\t') {
      result += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (IsPrintable(c)) {
      absl::StrAppend(&result, text.substr(start, at - start));
    } else if (c < 0x100) {
      absl::StrAppendFormat(&result, "\\x%02x", static_cast<unsigned>(c));
    } else if (c < 0x10000) {
      absl::StrAppendFormat(&result, "\\u%04x", static_cast<unsigned>(c));
    } else {
      absl::StrAppendFormat(&result, "\\U%08x", static_cast<unsigned>(c));
    }
  }
  result.push_back(quote);
  return result;
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto end =
      std::to_chars(buffer, buffer + sizeof buffer, std::abs(value), std::chars_format::scientific);
  const absl::string_view written(buffer, end.ptr - buffer);
  const size_t e = written.find('e');
  int exponent = 0;
  const size_t sign = written[e + 1] == '+' ? 2 : 1;
  std::from_chars(written.data() + e + sign, end.ptr, exponent);
  std::string digits(written.substr(0, e));
  digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
  const std::string minus = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    const std::string fraction = digits.size() > 1 ? absl::StrCat(".", digits.substr(1)) : "";
    return absl::StrCat(minus, digits.substr(0, 1), fraction, "e", exponent < 0 ? "-" : "+",
                        std::abs(exponent) < 10 ? "0" : "", std::abs(exponent));
  }
  if (exponent < 0) return absl::StrCat(minus, "0.", std::string(-exponent - 1, '0'), digits);
  const size_t whole = exponent + 1;
  if (digits.size() <= whole) {
    return absl::StrCat(minus, digits, std::string(whole - digits.size(), '0'), ".0");
  }
  return absl::StrCat(minus, digits.substr(0, whole), ".", digits.substr(whole));
}

absl::StatusOr<std::string> UnescapePython(absl::string_view text) {
  static constexpr absl::string_view kSimple = "abfnrtv\\'\"";
  static constexpr absl::string_view kSimpleValues = "\a\b\f\n\r\t\v\\'\"";
  std::string result;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\\' || at + 1 == text.size()) {
      result.push_back(text[at]);
      continue;
    }
    const char c = text[++at];
    if (const size_t simple = kSimple.find(c); simple != absl::string_view::npos) {
      result.push_back(kSimpleValues[simple]);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const int64_t value = HexDigits(text, at + 1, count);
      if (value < 0 || value > 0x10FFFF || U_IS_SURROGATE(value)) {
        return absl::InvalidArgumentError(absl::StrCat("\\", std::string(1, c),
                                                       " is followed by no code point of ", count,
                                                       " hexadecimal digits"));
      }
      AppendCodePoint(static_cast<char32_t>(value), &result);
      at += count;
    } else if (c >= '0' && c <= '7') {
      char32_t value = 0;
      size_t end = at;
      while (end < text.size() && end < at + 3 && text[end] >= '0' && text[end] <= '7') {
        value = value * 8 + (text[end++] - '0');
      }
      AppendCodePoint(value, &result);
      at = end - 1;
    } else if (c == 'N') {
      return absl::InvalidArgumentError("\\N, a character's name, is not supported");
    } else if (c != '\n') {
      result.push_back('\\');
      result.push_back(c);
    }
  }
  return result;
}

}  // namespace baton::chat
