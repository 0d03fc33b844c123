// The parts of a tokenizer.json that depend on the kind of tokenizer.
#ifndef BATON_COMMON_GGUF_TOKENIZER_PARTS_H_
#define BATON_COMMON_GGUF_TOKENIZER_PARTS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/gguf/file.h"

namespace baton::gguf {

// Each part is JSON, or empty if the tokenizer does not have it.
struct TokenizerParts {
  std::string normalizer, pre_tokenizer, decoder, added_tokens, model;
  bool add_bos = false;     // where the file does not say
  bool forces_bos = false;  // whatever it says
};

// tokenizer.ggml.model "gpt2", byte-level BPE: tokenizer.ggml.pre names one of the pipelines that
// the families' published tokenizer.json have. Unused tokens, which pad the embedding, are left
// out. UNIMPLEMENTED for another name.
absl::StatusOr<TokenizerParts> ByteLevelParts(const File& file);

// tokenizer.ggml.model "llama", SentencePiece's BPE with scores: what the converters of Hugging
// Face make of such a model. A merge for each way to cut a piece into two pieces, the highest score
// first; of one piece, the longest left part first (transformers, generate_merges). Time and memory
// grow with the file's size; what would need more is INVALID_ARGUMENT.
absl::StatusOr<TokenizerParts> SentencePieceParts(const File& file);

// tokenizer.ggml.model "gemma4": the same pieces with merges that the file lists, and no scores.
// BOS is first even if the file denies it, as it does in llama.cpp: early files did by mistake.
absl::StatusOr<TokenizerParts> Gemma4Parts(const File& file);

}  // namespace baton::gguf

#endif  // BATON_COMMON_GGUF_TOKENIZER_PARTS_H_
