// One adapter for each architecture, which reads its config.json into a ModelConfig.
#ifndef BATON_COMMON_MODEL_ARCHITECTURE_H_
#define BATON_COMMON_MODEL_ARCHITECTURE_H_

#include "absl/status/statusor.h"
#include "common/model/json_fields.h"
#include "common/model/model_config.h"

namespace baton::model {

// Fills the fields from architecture to layers, and eos_token_ids. weight_dtype stays kF32 if the
// config names none. UNIMPLEMENTED for anything that the forward pass would compute wrongly, also
// for keys that change it and that nothing reads (config_keys.h).
absl::StatusOr<ModelConfig> ParseConfig(const JsonFields& config);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_ARCHITECTURE_H_
