#include "common/tokenizer/unicode.h"

#include <unicode/uchar.h>

#include <cstring>

#include "absl/strings/match.h"
#include "common/base/utf8.h"
#include "common/tokenizer/newer_characters.h"

namespace baton::tokenizer {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD";

// Bytes that must follow a lead byte and the bounds of the first of them; count 0 for no lead byte.
struct Continuation {
  int count;
  unsigned char min;
  unsigned char max;
};

// Unicode 15, table 3-7.
Continuation ContinuationOf(unsigned char lead) {
  if (lead < 0xC2) return {0, 0, 0};
  if (lead < 0xE0) return {1, 0x80, 0xBF};
  if (lead == 0xE0) return {2, 0xA0, 0xBF};
  if (lead == 0xED) return {2, 0x80, 0x9F};
  if (lead < 0xF0) return {2, 0x80, 0xBF};
  if (lead == 0xF0) return {3, 0x90, 0xBF};
  if (lead < 0xF4) return {3, 0x80, 0xBF};
  if (lead == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

// Bytes of the well-formed character at the start of `text`; 0 if there is none.
size_t WellFormedBytes(absl::string_view text) {
  const Continuation rest = ContinuationOf(text[0]);
  if (rest.count == 0 || text.size() <= static_cast<size_t>(rest.count)) return 0;
  const unsigned char second = text[1];
  if (second < rest.min || second > rest.max) return 0;
  for (int i = 2; i <= rest.count; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) return 0;
  }
  return rest.count + 1;
}

size_t AsciiPrefixBytes(absl::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080u) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(absl::string_view text) {
  size_t i = 0;
  while (true) {
    i += AsciiPrefixBytes(text.substr(i));
    if (i == text.size()) return std::nullopt;
    const size_t bytes = WellFormedBytes(text.substr(i));
    if (bytes == 0) return i;
    i += bytes;
  }
}

bool IsAscii(absl::string_view text) { return AsciiPrefixBytes(text) == text.size(); }

absl::string_view LastCharBytes(absl::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return text.substr(begin);
}

bool IsWhitespace(char32_t c) { return u_isUWhiteSpace(c); }

bool IsWordChar(char32_t c) {
  if (u_charType(c) == U_UNASSIGNED) {
    const absl::string_view category = NewerCategory(c);
    return absl::StartsWith(category, "L") || absl::StartsWith(category, "M") || category == "Nd";
  }
  return u_isUAlphabetic(c) || (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) ||
         c == 0x200C || c == 0x200D;
}

bool IsNumeric(char32_t c) {
  if (u_charType(c) == U_UNASSIGNED) {
    // Rust, whose property this is, has Unicode 17, with these two ranges more.
    return absl::StartsWith(NewerCategory(c), "N") || (c >= 0x11DE0 && c <= 0x11DE9) ||
           (c >= 0x16FF4 && c <= 0x16FF6);
  }
  return U_GET_GC_MASK(c) & U_GC_N_MASK;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && !u_isalnum(c);
  // Two that were punctuation then and are not today.
  if (c == 0x166D || c == 0x111C9) return true;
  if (!(U_GET_GC_MASK(c) & U_GC_P_MASK)) return false;
  UVersionInfo age;
  u_charAge(c, age);
  return age[0] <= 8;
}

void AppendLowercase(char32_t c, std::string* out) {
  // The only character whose lower case is two.
  if (c == 0x130) {
    out->append("i\xCC\x87");
    return;
  }
  AppendUtf8(u_tolower(c), out);
}

void LossyUtf8Decoder::Append(absl::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    const unsigned char byte = c;
    if (missing_bytes_ == 0) {
      AppendLead(byte, out);
    } else if (!Continues(byte)) {
      Finish(out);
      AppendLead(byte, out);
    } else {
      held_[held_bytes_++] = c;
      next_min_ = 0x80;
      next_max_ = 0xBF;
      if (--missing_bytes_ == 0) {
        out->append(held_, held_bytes_);
        held_bytes_ = 0;
      }
    }
  }
}

void LossyUtf8Decoder::Finish(std::string* out) {
  if (missing_bytes_ > 0) out->append(kReplacement.data(), kReplacement.size());
  missing_bytes_ = 0;
  held_bytes_ = 0;
}

void LossyUtf8Decoder::AppendLead(unsigned char byte, std::string* out) {
  if (byte < 0x80) {
    out->push_back(static_cast<char>(byte));
    return;
  }
  const Continuation rest = ContinuationOf(byte);
  if (rest.count == 0) {
    out->append(kReplacement.data(), kReplacement.size());
    return;
  }
  held_[0] = static_cast<char>(byte);
  held_bytes_ = 1;
  missing_bytes_ = rest.count;
  next_min_ = rest.min;
  next_max_ = rest.max;
}

}  // namespace baton::tokenizer
