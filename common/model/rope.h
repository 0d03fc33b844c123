// The rotary frequencies of a config, in the old form or that of Transformers 5.
#ifndef BATON_COMMON_MODEL_ROPE_H_
#define BATON_COMMON_MODEL_ROPE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "common/model/json_fields.h"

namespace baton::model {

// Returns [head_dim / 2] frequencies, scaled by rope_scaling (old) or rope_parameters (new):
// "default", "linear" or "llama3"; UNIMPLEMENTED, naming it, for another type, and for a key that
// the type does not read. INVALID_ARGUMENT for two spellings that differ. None of the three types
// scales cos and sin.
absl::StatusOr<std::vector<double>> RopeInverseFrequencies(const JsonFields& config, int head_dim,
                                                           int max_positions);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_ROPE_H_
