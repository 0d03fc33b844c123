// A file's tokenizer and chat template in the words of their Hugging Face documents.
#ifndef BATON_COMMON_GGUF_TOKENIZER_JSON_H_
#define BATON_COMMON_GGUF_TOKENIZER_JSON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/gguf/file.h"

namespace baton::gguf {

// tokenizer.json: byte-level BPE (tokenizer.ggml.model "gpt2") or SentencePiece's BPE ("llama" or,
// with merges, "gemma4"), as tokenizer_parts.h says. Control and user-defined tokens become added
// tokens. UNIMPLEMENTED for another model.
absl::StatusOr<std::string> TokenizerJson(const File& file);

// tokenizer_config.json: the special tokens' texts and the chat templates.
absl::StatusOr<std::string> TokenizerConfigJson(const File& file);

// The tokens that end an answer, ascending: EOS, EOT and EOM, and control tokens that have the text
// of such a token in a known family, as files mostly name only one.
absl::StatusOr<std::vector<int64_t>> EndTokenIds(const File& file);

}  // namespace baton::gguf

#endif  // BATON_COMMON_GGUF_TOKENIZER_JSON_H_
