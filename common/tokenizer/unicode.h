// UTF-8 and the few Unicode properties that tokenizers ask for.
// Stateless functions are thread-safe; LossyUtf8Decoder is one per stream.
#ifndef BATON_COMMON_TOKENIZER_UNICODE_H_
#define BATON_COMMON_TOKENIZER_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::tokenizer {

// Returns the offset of the first byte sequence that is not UTF-8 (RFC 3629: no surrogates, no
// overlong forms, nothing above U+10FFFF); nullopt for valid text.
std::optional<size_t> FindInvalidUtf8(absl::string_view text);

bool IsAscii(absl::string_view text);

// Returns the bytes of the last character. REQUIRES: `text` is valid UTF-8 and not empty.
absl::string_view LastCharBytes(absl::string_view text);

// True for White_Space, which is Rust's char::is_whitespace and the regex crate's \s.
bool IsWhitespace(char32_t c);
// True for the regex crate's \w: Alphabetic, M, Nd, Pc, Join_Control.
bool IsWordChar(char32_t c);
// True for general category N.
bool IsNumeric(char32_t c);
// True for general category P as of Unicode 8, which is what Hugging Face's Punctuation knows, or
// an ASCII symbol such as '$' and '+'.
bool IsPunctuation(char32_t c);
// Appends the full lower-case mapping of one character, without context (no final sigma).
void AppendLowercase(char32_t c, std::string* out);

// Converts bytes, in pieces of any size, to whole UTF-8 characters. What is not UTF-8 becomes
// U+FFFD, one for each maximal subpart (Unicode 15, section 3.9), as Rust's String::from_utf8_lossy
// does.
class LossyUtf8Decoder {
 public:
  void Append(absl::string_view bytes, std::string* out);
  // The text ends here: a held unfinished character becomes one U+FFFD.
  void Finish(std::string* out);
  // True if the byte would be a part of a held unfinished character.
  bool Continues(unsigned char byte) const {
    return missing_bytes_ > 0 && byte >= next_min_ && byte <= next_max_;
  }

 private:
  void AppendLead(unsigned char byte, std::string* out);

  char held_[4] = {};  // an unfinished character, valid so far
  int held_bytes_ = 0;
  int missing_bytes_ = 0;
  unsigned char next_min_ = 0x80;  // bounds of the next byte; E0, ED, F0 and F4 narrow them
  unsigned char next_max_ = 0xBF;
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_UNICODE_H_
