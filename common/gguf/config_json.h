// The metadata of a model in the words of its Hugging Face documents.
#ifndef BATON_COMMON_GGUF_CONFIG_JSON_H_
#define BATON_COMMON_GGUF_CONFIG_JSON_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/gguf/file.h"

namespace baton::gguf {

// config.json. Ranges are checked by its reader. UNIMPLEMENTED, naming the key, for an architecture
// or a feature that Baton does not serve.
absl::StatusOr<std::string> ConfigJson(const File& file);

// generation_config.json of the sampling that the file recommends; nullopt if it recommends none.
absl::StatusOr<std::optional<std::string>> GenerationConfigJson(const File& file);

}  // namespace baton::gguf

#endif  // BATON_COMMON_GGUF_CONFIG_JSON_H_
