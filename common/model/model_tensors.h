// The names of a model's tensors in its checkpoint.
#ifndef BATON_COMMON_MODEL_MODEL_TENSORS_H_
#define BATON_COMMON_MODEL_MODEL_TENSORS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"

namespace baton::model {

// All are without ".weight". In safetensors files, the text part of a model for texts and images
// lies under one of two prefixes, of which the checkpoint shows which.
class TensorNames {
 public:
  TensorNames(const ModelConfig& config, const Checkpoint& checkpoint);

  const std::string& embedding() const { return embedding_; }
  // The embedding's if they are tied.
  const std::string& lm_head() const { return tied_ ? embedding_ : lm_head_; }
  // The LM head that a checkpoint may have, though the config ties it.
  const std::string& own_lm_head() const { return lm_head_; }
  bool gguf() const { return gguf_; }
  // expert: in place of the name's *, if it has one.
  std::string InLayer(int layer, TensorName name, int expert = 0) const;
  std::string Outside(TensorName name) const;
  // The layer of a tensor; -1: of none.
  int LayerOf(absl::string_view tensor) const;
  // Whether the part has a tensor of its own.
  bool Has(const MatrixSpec& part) const { return gguf_ || part.name; }
  // Whether the layer has the matrices of all experts in ProductSpec::fused.
  bool IsFused(int layer, const ProductSpec& product) const;
  // Whether the tensor is of K or V in a layer that attends to those of another one: checkpoints
  // may have them, and no reader wants them.
  bool IsOfSharedKv(const ModelConfig& config, int layer, absl::string_view tensor) const;

 private:
  const Checkpoint& checkpoint_;
  bool gguf_, tied_;
  std::string prefix_;  // of all but the LM head
  std::string layers_;
  std::string head_layer_;  // of an MTP head's layer, whose number is 0; else empty
  std::string embedding_, lm_head_;
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_MODEL_TENSORS_H_
