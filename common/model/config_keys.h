// What becomes of the keys of a model's JSON documents that no reader has read: those that change
// nothing are ignored, those that change what a model computes are refused by name, and others are
// logged. ADR 0022 has the reasons.
#ifndef BATON_COMMON_MODEL_CONFIG_KEYS_H_
#define BATON_COMMON_MODEL_CONFIG_KEYS_H_

#include "absl/status/status.h"
#include "common/model/json_fields.h"

namespace baton::model {

// Call each of these functions after all readers of the object, because its JsonFields know what
// was read. A value that is off (JsonFields::Unread) is no reason to refuse. They return
// UNIMPLEMENTED with the key; unknown keys become one line of the log.

// Checks config.json. A key is refused if its name has a word of the computation, such as "rope",
// "attn" or "scale", and is not known to change nothing. 1 is off for a scale or factor.
absl::Status CheckConfigKeys(const JsonFields& config);

// Checks config.json's quantization_config by the same rule, with the words of weight formats.
absl::Status CheckQuantizationKeys(const JsonFields& quantization);

// Checks generation_config.json. A key is refused if it is known to change the tokens that are
// drawn, whatever a request says, and is not at its neutral value. `samples`: do_sample is true.
absl::Status CheckGenerationKeys(const JsonFields& generation, bool samples);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_CONFIG_KEYS_H_
