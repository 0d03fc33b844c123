// The sampling that a GGUF file recommends, in the words of Hugging Face's generation_config.json.
#ifndef BATON_COMMON_GGUF_GENERATION_JSON_H_
#define BATON_COMMON_GGUF_GENERATION_JSON_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/gguf/file.h"

namespace baton::gguf {

// nullopt if the file recommends none. UNIMPLEMENTED, naming the key, for a sampler that Baton does
// not have.
absl::StatusOr<std::optional<std::string>> GenerationConfigJson(const File& file);

}  // namespace baton::gguf

#endif  // BATON_COMMON_GGUF_GENERATION_JSON_H_
