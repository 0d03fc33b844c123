// A checkpoint's tensors on the device, packed for the forward pass.
#ifndef BATON_COMMON_MODEL_WEIGHTS_H_
#define BATON_COMMON_MODEL_WEIGHTS_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"

namespace baton::model {

// d: hidden, h: head dim, Hq and Hkv: query and KV heads, f: feed-forward, v: vocabulary.
struct LayerWeights {
  std::unique_ptr<backend::Buffer> attention_norm;          // [d]
  std::unique_ptr<backend::PackedMatrix> qkv;               // [(Hq + 2 Hkv) h, d]
  std::unique_ptr<backend::Buffer> qkv_bias;                // [(Hq + 2 Hkv) h] or null
  std::unique_ptr<backend::Buffer> q_norm;                  // [h] or null
  std::unique_ptr<backend::Buffer> k_norm;                  // [h] or null
  std::unique_ptr<backend::PackedMatrix> attention_output;  // [d, Hq h]
  std::unique_ptr<backend::Buffer> ffn_norm;                // [d]
  std::unique_ptr<backend::PackedMatrix> gate_up;           // [2 f, d]
  std::unique_ptr<backend::PackedMatrix> down;              // [d, f]
};

struct Weights {
  // Null: the LM head is the embedding, too.
  std::unique_ptr<backend::Buffer> embedding_memory;
  backend::Tensor embedding;  // [v, d], of EmbeddingDType
  std::vector<LayerWeights> layers;
  std::unique_ptr<backend::Buffer> final_norm;     // [d]
  std::unique_ptr<backend::PackedMatrix> lm_head;  // [v, d]
};

// The LM head of ModelConfig::load_bits: its errors go into the logits as they are.
inline constexpr int kLmHeadLoadBits = 8;

inline constexpr char kEmbeddingName[] = "model.embed_tokens.weight";

// The type that the embedding has on a device with these activations; nullopt if the checkpoint has
// none.
std::optional<backend::DType> EmbeddingDType(const Checkpoint& checkpoint,
                                             backend::DType activation);

// INVALID_ARGUMENT, naming file and tensor, if one is missing or misshapen. UNIMPLEMENTED for a
// dtype that weights cannot have, or a bias or norm that the architecture does not have: ignoring
// it would change the answer. Other unknown tensors are ignored with a warning. `progress` may be
// empty.
absl::StatusOr<Weights> LoadWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                    const std::function<void(double)>& progress,
                                    backend::Backend& backend);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_WEIGHTS_H_
