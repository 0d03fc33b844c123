// Returns the text of a stream of tokens as soon as it is certain.
//
// The results of Append and Flush, concatenated, are Tokenizer::Decode of all appended ids.
// Returned text is final and always whole UTF-8, so these are held back:
//   - the bytes of an unfinished character (byte-level models), at most 3;
//   - a run of byte tokens such as "<0xE4>", until a token of another kind arrives, because one bad
//     byte changes the whole run (byte-fallback models);
//   - characters that a Strip decoder may take from the end (no published model has one that does).
// Flush returns the rest, with U+FFFD for an unfinished character.
//
// Prompts: some decoders drop the space that starts a text (Llama 2, Mistral). Text that continues
// a prompt must keep that space: construct with TextPosition::kContinuation and append the
// generated ids only; never decode the prompt's tokens into the output. If the prompt decodes
// to nothing, use kStart. For byte-level models the two are the same.
#ifndef BATON_COMMON_TOKENIZER_INCREMENTAL_DETOKENIZER_H_
#define BATON_COMMON_TOKENIZER_INCREMENTAL_DETOKENIZER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tokenizer/decoder.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::tokenizer {

// One per stream, not thread-safe. The time per token does not depend on the length of the text so
// far. Memory is bounded by the text that is held back.
class IncrementalDetokenizer {
 public:
  // `tokenizer` outlives this.
  explicit IncrementalDetokenizer(const Tokenizer& tokenizer, bool skip_special_tokens = true,
                                  TextPosition position = TextPosition::kStart);

  // Returns the text that became certain, often empty. INVALID_ARGUMENT in the same cases as
  // Tokenizer::Decode; in that case no id is consumed.
  absl::StatusOr<std::string> Append(absl::Span<const int32_t> ids);

  // Returns the rest of the text and ends the stream. Nothing may be appended after it; a second
  // call returns "".
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  const bool skip_special_tokens_;
  DecodeStream stream_;
  bool flushed_ = false;
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_INCREMENTAL_DETOKENIZER_H_
