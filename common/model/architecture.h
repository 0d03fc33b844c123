// The adapters: each reads one architecture's config.json into the form that all share.
#ifndef BATON_COMMON_MODEL_ARCHITECTURE_H_
#define BATON_COMMON_MODEL_ARCHITECTURE_H_

#include "absl/status/statusor.h"
#include "common/model/json_fields.h"
#include "common/model/model_config.h"

namespace baton::model {

// Fills what config.json says: architecture to layers, and eos_token_ids. weight_dtype stays kF32
// where the config names none. UNIMPLEMENTED for anything that the forward pass would get wrong.
absl::StatusOr<ModelConfig> ParseConfig(const JsonFields& config);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_ARCHITECTURE_H_
