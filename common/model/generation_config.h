// What a model recommends for requests that name no sampling and no length, and its end tokens:
// generation_config.json, and what an operator puts in place of its values.
#ifndef BATON_COMMON_MODEL_GENERATION_CONFIG_H_
#define BATON_COMMON_MODEL_GENERATION_CONFIG_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/model/json_fields.h"
#include "common/model/model_config.h"

namespace baton::model {

// INVALID_ARGUMENT if the model has more end tokens than a request can carry. `fields`: where they
// were read.
absl::Status CheckEosTokenIds(const JsonFields& fields, const ModelConfig& model);

// Reads `text`, the content of `file`, unless there is none, and then `overrides`, a JSON object
// with keys of generation_config.json; empty: none. Each key of `overrides` replaces what the file
// says: do_sample decides on the file's sampling values, and those of `overrides` hold in any case.
// Fields of *model that neither names keep their values. Errors name the file, or the flag
// --override-generation-config, and the key: INVALID_ARGUMENT; UNIMPLEMENTED for a key of the file
// that Baton does not apply. REQUIRES: model->vocab_size is set.
absl::Status ReadGenerationConfig(const std::optional<std::string>& text, const std::string& file,
                                  absl::string_view overrides, ModelConfig* model);

// INVALID_ARGUMENT if `overrides` is wrong for every model. Whether the vocabulary has its end
// tokens is not known before the model is.
absl::Status CheckGenerationOverrides(absl::string_view overrides);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_GENERATION_CONFIG_H_
