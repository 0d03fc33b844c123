// Runs the pre-tokenizers of a Pipeline: splits a text into the words that the tokenizer's model
// (BPE) encodes separately. Thread-safe.
#ifndef BATON_COMMON_TOKENIZER_PRE_TOKENIZER_H_
#define BATON_COMMON_TOKENIZER_PRE_TOKENIZER_H_

#include <vector>

#include "absl/status/status.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pipeline.h"

namespace baton::tokenizer {

// Sets `words` to the words of `piece`, in order, none of them empty. They point into the piece or
// into `scratch`. Returns INVALID_ARGUMENT in the same cases as Matcher::ForEachMatch.
// REQUIRES: `piece` is valid UTF-8.
absl::Status PreTokenize(const std::vector<PreTokenizer>& pre_tokenizers, Piece piece,
                         Scratch* scratch, std::vector<Piece>* words);

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_PRE_TOKENIZER_H_
