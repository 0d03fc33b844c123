// Whether a checkpoint is made for embeddings of texts: what sentence-transformers keeps beside
// config.json (modules.json and the config of its pooling), or a GGUF file's pooling type.
#ifndef BATON_COMMON_MODEL_EMBEDDING_CONFIG_H_
#define BATON_COMMON_MODEL_EMBEDDING_CONFIG_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_config.h"

namespace baton::model {

// nullopt for a checkpoint that says nothing of it. One whose vectors this does not compute, as
// those pooled over all tokens, counts as one that says nothing, and one line in the log says why.
// INVALID_ARGUMENT, naming the file and the field, for malformed files.
absl::StatusOr<std::optional<EmbeddingSpec>> ReadEmbeddingSpec(const std::string& model_dir);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_EMBEDDING_CONFIG_H_
