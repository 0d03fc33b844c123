// Finds where the tokens of a text begin in it, in characters (code points), for lists of tokens
// beside the text.
//
// A token begins at the character to which its first byte belongs: all tokens of one character
// begin at that character, and a token after a broken character begins after its U+FFFD. A hidden
// token begins where the next token's first byte would. Positions are exact where no step after the
// bytes changes the text, as in all published models.
#ifndef BATON_COMMON_TOKENIZER_TOKEN_POSITIONS_H_
#define BATON_COMMON_TOKENIZER_TOKEN_POSITIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/tokenizer/decoder.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/unicode.h"

namespace baton::tokenizer {

// One object serves one text; it is not thread-safe. Memory is bounded by the text that a
// detokenizer would hold back.
class TokenPositions {
 public:
  // `tokenizer` outlives this.
  TokenPositions(const Tokenizer& tokenizer, TextPosition position);

  // Takes the next token of the text; `hidden`: it is not a part of the text, like an id without a
  // token. Appends to `begins`, in the order of the tokens, the positions that are known by now:
  // those in a run of byte tokens such as "<0xE4>" are known when the run has ended.
  void Append(int32_t id, bool hidden, std::vector<int64_t>* begins);
  // The text ends here: appends the positions of the other tokens. Nothing may follow.
  void Finish(std::vector<int64_t>* begins);

 private:
  void AppendBytes(absl::string_view token, std::vector<int64_t>* begins);
  int64_t EndRun(std::vector<int64_t>* begins);

  const Tokenizer& tokenizer_;
  const bool byte_level_;
  const bool byte_fallback_;
  int64_t characters_ = 0;      // characters of the text so far, without what is held back
  LossyUtf8Decoder held_;       // the unfinished character of byte-level models
  DecodeStream stream_;         // used for all other models
  std::string run_;             // the bytes of a run that has not ended
  std::vector<size_t> in_run_;  // where in `run_` its tokens begin
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_TOKEN_POSITIONS_H_
