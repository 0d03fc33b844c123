// A checkpoint's tensors on the device, packed for the forward pass.
#ifndef BATON_COMMON_MODEL_WEIGHTS_H_
#define BATON_COMMON_MODEL_WEIGHTS_H_

#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/model/checkpoint.h"
#include "common/model/model_config.h"

namespace baton::model {

struct ProductWeights {
  std::unique_ptr<backend::PackedMatrix> matrix;  // [rows, cols] of the ProductSpec
  std::unique_ptr<backend::Buffer> bias;          // [rows] or null
};
// Null unless attention is latent.
struct LatentWeights {
  std::unique_ptr<backend::Buffer> norm, q_norm;
  ProductWeights q_up;
  // LatentSpec::expand by heads (Backend::PackHeads): the keys' part transposed, [rank, plain], and
  // the values' part, [value_dim, rank].
  std::unique_ptr<backend::PackedMatrix> keys, values;
};
// Norms that the spec does not have are null.
struct AttentionWeights {
  ProductWeights qkv;
  std::unique_ptr<backend::Buffer> q_norm, k_norm;
  ProductWeights output;
  std::unique_ptr<backend::Buffer> sinks;
  LatentWeights latent;
};
struct MlpWeights {
  ProductWeights gate_up, down;
  float scale = 1;  // on what down multiplies; see gated_range.h
};
// Null unless the experts have norms of their own. router_scale has router_factor in it.
struct ExpertsBesideWeights {
  std::unique_ptr<backend::Buffer> mlp_after, before, after, router_scale;  // [d]
  std::unique_ptr<backend::Buffer> expert_scales;                           // [experts]
};
struct ExpertsWeights {
  std::unique_ptr<backend::PackedMatrix> router;
  std::unique_ptr<backend::Buffer> router_bias, choice_bias;
  std::vector<std::unique_ptr<backend::PackedMatrix>> matrices;  // gate_up and down of each
  std::unique_ptr<backend::Buffer> gate_up_bias, down_bias;      // of all of them
  std::unique_ptr<backend::ExpertGroup> group;                   // of them
  MlpWeights shared;  // its scale is used with `beside` alone
  ProductWeights shared_gate;
  ExpertsBesideWeights beside;
  float scale = 1;  // on what down multiplies, of all of them

  // What the layer's result has as a factor: norms of their own take the scales away.
  float result_scale() const { return beside.after == nullptr ? scale : 1; }
};
// Those that the spec does not have are null.
struct RecurrentWeights {
  ProductWeights in, steps, output;
  std::unique_ptr<backend::Buffer> conv;  // [taps, conv_width()]
  std::unique_ptr<backend::Buffer> conv_bias;
  std::unique_ptr<backend::Buffer> decay, step_bias, skip;  // [heads]; the decay is negative
  std::unique_ptr<backend::Buffer> norm;
};
struct LayerInputWeights {
  ProductWeights gate, projection;
};
struct SublayerWeights {
  std::unique_ptr<backend::Buffer> norm_before, norm_after;  // [d]
  // As SublayerSpec::body.
  std::variant<AttentionWeights, MlpWeights, ExpertsWeights, RecurrentWeights, LayerInputWeights>
      body;
};
struct LayerWeights {
  std::vector<SublayerWeights> sublayers;
  float scale = 1;  // LayerSpec::scale
};

// An embedding as a table of rows.
struct EmbeddingWeights {
  std::unique_ptr<backend::Buffer> memory;
  backend::Tensor table;
};
// Null without LayerInputsSpec.
struct LayerInputsWeights {
  EmbeddingWeights embedding;
  ProductWeights projection;
  std::unique_ptr<backend::Buffer> norm;
};

// The weights of MtpSpec, but for its layer and its last norm.
struct MtpInputWeights {
  std::unique_ptr<backend::Buffer> embedding_norm, hidden_norm;  // [d]
  ProductWeights input;
};

struct Weights {
  // Null: the LM head is the embedding, too. [vocabulary, d], of EmbeddingDType.
  EmbeddingWeights embedding;
  LayerInputsWeights inputs;
  MtpInputWeights mtp;  // null but in an MTP head, which has neither embedding nor LM head
  std::vector<LayerWeights> layers;
  std::unique_ptr<backend::Buffer> final_norm;     // [d]
  std::unique_ptr<backend::PackedMatrix> lm_head;  // [vocabulary, d]
};

// The LM head of ModelConfig::load_bits: its errors go into the logits as they are.
inline constexpr int kLmHeadLoadBits = 8;

// The type that the embedding has on a device with these activations; nullopt if the checkpoint has
// none.
std::optional<backend::DType> EmbeddingDType(const Checkpoint& checkpoint,
                                             const ModelConfig& config, backend::DType activation);

// experts_on_host: layers with experts, from the first one on, whose experts' matrices are packed
// in the host's memory. INVALID_ARGUMENT, naming file and tensor, if one is missing or misshapen.
// UNIMPLEMENTED for a dtype that weights cannot have, or a bias or norm that the architecture does
// not have: ignoring it would change the answer. Other unknown tensors are ignored with a warning.
// `progress` may be empty.
absl::StatusOr<Weights> LoadWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                    const std::function<void(double)>& progress,
                                    backend::Backend& backend, int experts_on_host = 0);
// Those of an MTP head. INVALID_ARGUMENT as above. REQUIRES: config.is_mtp_head.
absl::StatusOr<Weights> LoadMtpWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                       backend::Backend& backend);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_WEIGHTS_H_
