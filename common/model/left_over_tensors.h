// What a checkpoint has beside the tensors that its model reads.
#ifndef BATON_COMMON_MODEL_LEFT_OVER_TENSORS_H_
#define BATON_COMMON_MODEL_LEFT_OVER_TENSORS_H_

#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"

namespace baton::model {

// Names in the log what is left out: layers for speculation, and tensors that the model does not
// have. UNIMPLEMENTED for a bias or a norm of a layer, without which its answers would be wrong.
// taken: the names of all tensors that were read.
absl::Status CheckLeftOver(const Checkpoint& checkpoint, const ModelConfig& config,
                           const absl::flat_hash_set<std::string>& taken);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_LEFT_OVER_TENSORS_H_
