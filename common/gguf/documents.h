// A GGUF file as the JSON documents of a Hugging Face directory, so that one reader checks both.
#ifndef BATON_COMMON_GGUF_DOCUMENTS_H_
#define BATON_COMMON_GGUF_DOCUMENTS_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::gguf {

// True if the name of the model is that of a GGUF file, not of a directory.
bool IsGguf(absl::string_view model);

// How messages name a document of the model: "DIR/config.json", "m.gguf (as config.json)".
std::string DocumentName(absl::string_view model, absl::string_view document);

// Returns what the file at `path` says in the words of generation_config.json, tokenizer.json or
// tokenizer_config.json (model/gguf_config.h has config.json); nullopt if it has nothing for it.
// Equal files give equal texts. NOT_FOUND, INVALID_ARGUMENT, or UNIMPLEMENTED, naming file and key,
// for what the document cannot say or Baton does not serve. REQUIRES: `document` is one of the
// three.
absl::StatusOr<std::optional<std::string>> ReadDocument(const std::string& path,
                                                        absl::string_view document);

// The tensor of Llama 3's factors [head_dim / 2], by which the rotary frequencies are divided: the
// one part of a config that is stored as a tensor.
inline constexpr char kRopeFactorsName[] = "rope_freqs.weight";

}  // namespace baton::gguf

#endif  // BATON_COMMON_GGUF_DOCUMENTS_H_
