// Runs the pre-tokenizers of a Pipeline: splits a text into the words that the model encodes one by
// one. Thread-safe.
#ifndef BATON_COMMON_TOKENIZER_PRE_TOKENIZER_H_
#define BATON_COMMON_TOKENIZER_PRE_TOKENIZER_H_

#include <vector>

#include "absl/status/status.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pipeline.h"

namespace baton::tokenizer {

// The words of `piece`, in order and none of them empty. They point into the piece or into
// `scratch`. INVALID_ARGUMENT as Matcher::ForEachMatch. REQUIRES: valid UTF-8.
absl::Status PreTokenize(const std::vector<PreTokenizer>& pre_tokenizers, Piece piece,
                         Scratch* scratch, std::vector<Piece>* words);

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_PRE_TOKENIZER_H_
