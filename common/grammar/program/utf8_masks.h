// Which tokens may follow in an answer that is UTF-8. XGrammar lets some classes match overlong
// forms and surrogates, which no text has: an answer with them would not be one that the grammar
// allows.
#ifndef BATON_COMMON_GRAMMAR_PROGRAM_UTF8_MASKS_H_
#define BATON_COMMON_GRAMMAR_PROGRAM_UTF8_MASKS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/base/utf8.h"

namespace baton::grammar {

// Thread-safe once made.
class Utf8Masks {
 public:
  // token_bytes[i] is what token i adds to a text; it may end within a character. One that adds
  // nothing, as the end and special tokens, comes between characters. Keeps kUtf8States bits for
  // each token.
  explicit Utf8Masks(std::vector<std::string> token_bytes);

  // The state of a text after one more token. REQUIRES: 0 <= token < the number of tokens.
  Utf8State After(Utf8State state, int32_t token) const;

  // Clears the bits of tokens that do not go on with UTF-8. Bit i % 32 of word i / 32 is token i's.
  // REQUIRES: a word for each 32 tokens; `state` is not kInvalid.
  void Apply(Utf8State state, absl::Span<uint32_t> mask) const;

 private:
  std::vector<std::string> token_bytes_;
  std::array<std::vector<uint32_t>, kUtf8States> allowed_;  // by state
};

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_PROGRAM_UTF8_MASKS_H_
