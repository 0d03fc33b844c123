// The description of a model's layers, from which loading, memory, costs, tuning and the forward
// pass derive. A layer is a list of sublayers; each adds to the residual stream:
//   residual += norm_after(residual_scale * body(norm_before(residual)))
#ifndef BATON_COMMON_MODEL_LAYER_SPEC_H_
#define BATON_COMMON_MODEL_LAYER_SPEC_H_

#include <cstdint>
#include <variant>
#include <vector>

#include "common/backend/backend.h"

namespace baton::model {

// A module or tensor in both file formats, without ".weight" or ".bias": a layer's in the layer,
// others as model_tensors.h says; an expert's has a * in place of the expert's index.
// hugging_face null: there is none.
struct TensorName {
  const char* hugging_face = nullptr;
  const char* gguf = nullptr;

  explicit operator bool() const { return hugging_face != nullptr; }
};

// An RMS norm, if it has a name.
struct NormSpec {
  TensorName name;
  int64_t size = 0;
  bool less_one = false;  // safetensors files have the weight less one, as Gemma's do

  explicit operator bool() const { return static_cast<bool>(name); }
};

struct MatrixSpec {
  TensorName name;
  int64_t rows = 0;
};

// Matrices with the same input, multiplied as one.
struct ProductSpec {
  std::vector<MatrixSpec> parts;  // one behind the other
  int64_t cols = 0;
  bool bias = false;       // of experts: one tensor for all of them, [experts, rows]
  bool quantized = false;  // the checkpoint has all parts in few bits
  // Of experts: the tensor that has all of their matrices in safetensors files (fused_experts.h).
  TensorName fused = {};

  int64_t rows() const {
    int64_t sum = 0;
    for (const MatrixSpec& part : parts) sum += part.rows;
    return sum;
  }
};

inline constexpr int kNoRope = -1;

// Causal attention of query_heads heads; query_heads / kv_heads of them share one K and V.
struct AttentionSpec {
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;        // 0: a token sees all tokens before it; else itself and window - 1 of them
  float scale = 0;       // on q·k
  float score_cap = 0;   // 0: none; see backend::AttentionArgs
  int rope = 0;          // index in ModelConfig::ropes, or kNoRope
  NormSpec q_norm = {};  // of each head, or of all heads together, as its size says
  NormSpec k_norm = {};
  ProductSpec qkv = {};  // q, k and v
  ProductSpec output = {};
  TensorName sinks = {};  // a tensor of [query_heads], or none: backend::AttentionArgs

  int64_t q_width() const { return int64_t{query_heads} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  // Whether q and k are normed before they are split into heads.
  bool norms_all_heads() const { return q_norm && q_norm.size != head_dim; }
};

// down(activation(gate(x)) * up(x))
struct MlpSpec {
  int ffn_dim = 0;
  backend::GatedActivation activation = backend::GatedActivation::kSilu;
  ProductSpec gate_up = {};  // gate, then up
  ProductSpec down = {};
};

// Of `count` gated MLPs, a router chooses those for each token that compute it (arXiv 1701.06538):
//   the sum over the chosen e of weight_e(x) * expert_e(x); see backend::ExpertRouting
struct ExpertsSpec {
  int count = 0;
  backend::ExpertRouting routing;
  ProductSpec router = {};  // [count, d]
  MlpSpec expert = {};      // each of them
};

struct SublayerSpec {
  NormSpec norm_before = {};
  NormSpec norm_after = {};
  float residual_scale = 1;  // before norm_after
  std::variant<AttentionSpec, MlpSpec, ExpertsSpec> body;
};

// The layer's one sublayer of that kind. REQUIRES: it has one.
template <class Body, class Layer>
auto& SublayerOf(Layer& layer) {
  for (auto& sublayer : layer.sublayers) {
    if (std::holds_alternative<Body>(sublayer.body)) return sublayer;
  }
  BATON_CHECK(false) << "no such sublayer in the layer";
  return layer.sublayers.front();
}

struct LayerSpec {
  std::vector<SublayerSpec> sublayers;

  // REQUIRES: it has one such sublayer.
  SublayerSpec& attention_sublayer() { return SublayerOf<AttentionSpec>(*this); }
  SublayerSpec& mlp_sublayer() { return SublayerOf<MlpSpec>(*this); }
  AttentionSpec& attention() { return std::get<AttentionSpec>(attention_sublayer().body); }
  MlpSpec& mlp() { return std::get<MlpSpec>(mlp_sublayer().body); }
  const AttentionSpec& attention() const {
    return std::get<AttentionSpec>(SublayerOf<AttentionSpec>(*this).body);
  }
  const MlpSpec& mlp() const { return std::get<MlpSpec>(SublayerOf<MlpSpec>(*this).body); }
};

// visit(product, count) for the products of a sublayer, in the order in which they are computed,
// and how many there are of the kind: of experts more than one, with as many matrices. Routers,
// which stay float32, are not among them.
template <class Sublayer, class Visit>
void ForEachProduct(Sublayer& sublayer, const Visit& visit) {
  if (auto* attention = std::get_if<AttentionSpec>(&sublayer.body)) {
    visit(attention->qkv, 1);
    visit(attention->output, 1);
    return;
  }
  auto* experts = std::get_if<ExpertsSpec>(&sublayer.body);
  auto& mlp = experts != nullptr ? experts->expert : std::get<MlpSpec>(sublayer.body);
  const int count = experts != nullptr ? experts->count : 1;
  visit(mlp.gate_up, count);
  visit(mlp.down, count);
}
// visit(norm) for the norms that the sublayer has.
template <class Visit>
void ForEachNorm(const SublayerSpec& sublayer, const Visit& visit) {
  const auto* attention = std::get_if<AttentionSpec>(&sublayer.body);
  for (const NormSpec* norm :
       {&sublayer.norm_before, attention == nullptr ? nullptr : &attention->q_norm,
        attention == nullptr ? nullptr : &attention->k_norm, &sublayer.norm_after}) {
    if (norm != nullptr && *norm) visit(*norm);
  }
}

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_LAYER_SPEC_H_
