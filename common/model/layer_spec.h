// The description of a model's layers, from which loading, memory, costs, tuning and the forward
// pass derive. A layer is a list of sublayers; each adds to the residual stream:
//   residual += norm_after(residual_scale * body(norm_before(residual)))
#ifndef BATON_COMMON_MODEL_LAYER_SPEC_H_
#define BATON_COMMON_MODEL_LAYER_SPEC_H_

#include <algorithm>
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
  // Without a name in safetensors files, they have its rows in the tensor of the part before it.
  TensorName name;
  int64_t rows = 0;
};

// Matrices with the same input, multiplied as one.
struct ProductSpec {
  std::vector<MatrixSpec> parts;  // one behind the other
  int64_t cols = 0;
  bool bias = false;       // of experts: one tensor for all of them, [experts, rows]
  bool quantized = false;  // the checkpoint has all parts in few bits
  bool rounds = true;      // to ModelConfig::load_bits
  // Of experts: the tensor that has all of their matrices in safetensors files (fused_experts.h).
  TensorName fused = {};
  // It is [experts, rows, cols], and a file may have each expert's matrices in its place.
  bool fused_by_rows = false;
  // The one part's rows are in turn: so many of the first kind, of the second and so on, and then
  // the same again. Those of a kind are loaded one behind the other. Empty: there is one kind.
  std::vector<int64_t> turns = {};

  int64_t rows() const {
    int64_t sum = 0;
    for (const MatrixSpec& part : parts) sum += part.rows;
    return sum;
  }
};

inline constexpr int kNoRope = -1;
inline constexpr int kOwnKv = -1;

// Latent attention (DeepSeek-V2, arXiv 2405.04434): a token's KV is a latent, from which the
// checkpoint's matrix makes a key and a value for each head, and a rotated part that all heads'
// keys end with. Here queries go through the keys' matrix and results through the values' one, so
// keys are [latent, rotated part] as they are stored, and values are latents: attention with one KV
// head. Prompts and answers are computed alike, since the two ways round differently: ADR 26.
struct LatentSpec {
  int rank = 0;        // of latents; 0: attention is not latent
  int rotated = 0;     // elements of the rotated part, whose pairs are neighbours in the checkpoint
  int plain = 0;       // elements of a head's query and key before the rotated part
  int value_dim = 0;   // of a head
  float norm_eps = 0;  // of the norms here
  NormSpec norm = {};  // of latents
  // Queries may have latents, too, which are normed.
  NormSpec q_norm = {};
  ProductSpec q_up = {};  // [heads * (plain + rotated), q_norm.size]
  // [heads * (plain + value_dim), rank], of each head the keys' rows first. GGUF files have them
  // apart, for each head: the keys' transposed.
  TensorName expand = {"self_attn.kv_b_proj", "attn_kv_b"};
  TensorName keys = {"", "attn_k_b.*"};
  TensorName values = {"", "attn_v_b.*"};

  explicit operator bool() const { return rank > 0; }
};

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
  // q, k and v; of latent attention q (or its latent), then the latent and the rotated part of k.
  ProductSpec qkv = {};
  // Each head's query is followed by as many columns, the head's gate: the head's result is
  // multiplied by 1 / (1 + e^-gate).
  bool gated = false;
  ProductSpec output = {};
  TensorName sinks = {};  // a tensor of [query_heads], or none: backend::AttentionArgs
  // The index of the earlier layer whose K and V these queries attend to: it stores KV, and has as
  // many heads. kOwnKv: the layer's own. A layer with another's KV computes q alone and stores
  // nothing.
  int kv_from = kOwnKv;
  bool v_is_k = false;  // v is what `qkv` gives for k, before its norm and rotation
  bool norm_v = false;  // of each head, without a weight
  // Then kv_heads is 1 and head_dim is rank + rotated.
  LatentSpec latent = {};

  bool owns_kv() const { return kv_from == kOwnKv; }
  int64_t q_width() const { return int64_t{query_heads} * head_dim; }
  // Columns of a head's query in `qkv`.
  int64_t q_stride() const { return int64_t{gated ? 2 : 1} * head_dim; }
  int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  // Columns of what attention leaves: of latent attention, latents.
  int64_t result_width() const { return query_heads * int64_t{latent ? latent.rank : head_dim}; }
  // Whether q and k are normed before they are split into heads.
  bool norms_all_heads() const { return q_norm && q_norm.size != head_dim; }
};

// A recurrent layer: it multiplies its input, convolves some of the products over the last few
// tokens, and combines them with a state (backend/recurrence.h).
//   kShortConv (LFM2): in = B, C, x of conv_width columns; output(C * conv(B * x))
//   kGatedDelta (Qwen3-Next, arXiv 2412.06464): in = queries, keys, values, then gates z;
//     output(norm(delta(silu(conv(q, k, v)), steps)) * silu(z))
//   kStateSpace (Mamba 2, arXiv 2405.21060): in = gates z, then x, B, C, then steps;
//     output(norm(silu(z) * scan(silu(conv(x, B, C)), steps)))
struct RecurrentSpec {
  enum class Kind : uint8_t { kShortConv, kGatedDelta, kStateSpace };
  Kind kind = Kind::kShortConv;
  int taps = 0;          // tokens that the convolution sees
  TensorName conv = {};  // [conv_width(), 1, taps] or, in GGUF files, [conv_width(), taps]
  bool conv_bias = false;
  // Of kShortConv there is one head of its width. Of kStateSpace, keys are B and C, and groups of
  // heads share them.
  int heads = 0;
  int head_dim = 0;
  int key_heads = 0;
  int key_dim = 0;
  // In kGatedDelta, value head h uses key head h % key_heads, as GGUF files order them, not
  // h / (heads / key_heads).
  bool keys_in_turn = false;
  ProductSpec in = {};
  ProductSpec steps = {};  // of kGatedDelta: b, then a, [2 * heads, d]
  // Tensors of [heads], without a suffix: the logarithm of minus the decay, or in GGUF files the
  // decay.
  TensorName decay = {};
  TensorName step_bias = {};
  TensorName skip = {};
  float least_step = 0;
  float most_step = 0;
  NormSpec norm = {};      // of a head or, by its size, of all columns
  int64_t norm_group = 0;  // columns that are normed together
  float norm_eps = 0;
  ProductSpec output = {};

  int64_t width() const { return int64_t{heads} * head_dim; }
  int64_t conv_width() const {
    return width() + (kind == Kind::kShortConv ? 0 : 2 * int64_t{key_heads} * key_dim);
  }
  // The first column of `in` that is convolved, and that of the gates.
  int64_t conv_column() const {
    return kind == Kind::kGatedDelta ? 0 : kind == Kind::kStateSpace ? width() : 2 * width();
  }
  int64_t gate_column() const { return kind == Kind::kGatedDelta ? conv_width() : 0; }
  // The planes of the state, as {lanes, depth}.
  template <class Shape>
  std::vector<Shape> StateShapes() const {
    std::vector<Shape> shapes = {{conv_width(), taps - 1}};
    if (kind != Kind::kShortConv) shapes.push_back({width(), key_dim});
    return shapes;
  }
};

// down(activation(gate(x)) * up(x)) or, with an activation that has no gate,
// down(activation(up(x)))
struct MlpSpec {
  int ffn_dim = 0;
  backend::GatedActivation activation = backend::GatedActivation::kSilu;
  ProductSpec gate_up = {};  // gate, then up; or up alone
  ProductSpec down = {};

  int parts() const { return backend::GatedParts(activation); }
  bool has_gate() const { return parts() == 2; }
};

// Experts beside an MLP that computes all tokens (ExpertsSpec::shared), where both have norms
// (Gemma 4). SublayerSpec::norm_before is the MLP's:
//   mlp_after(shared(norm_before(x))) + after(the experts' sum of before(x))
struct ExpertsBesideSpec {
  NormSpec mlp_after = {};
  NormSpec before = {};
  NormSpec after = {};
  // The router reads x / rms(x) * router_scale * router_factor. A tensor of [d], without a suffix.
  TensorName router_scale = {};
  float router_factor = 1;
  // Factors of the chosen ones' weights at last. A tensor of [count], without a suffix.
  TensorName expert_scales = {};

  explicit operator bool() const { return static_cast<bool>(before); }
};

// Of `count` MLPs, a router chooses those for each token that compute it (arXiv 1701.06538):
//   shared(x) + the sum over the chosen e of weight_e(x) * expert_e(x); see backend::ExpertRouting
struct ExpertsSpec {
  int count = 0;
  backend::ExpertRouting routing;
  ProductSpec router = {};      // [count, d]
  TensorName choice_bias = {};  // a tensor of [count], or none: backend::ChooseExperts
  MlpSpec expert = {};          // each of them
  MlpSpec shared = {};          // of all tokens; ffn_dim 0: none
  // [1, d], or nothing: what `shared` gives is multiplied by 1 / (1 + e^-gate).
  ProductSpec shared_gate = {};
  ExpertsBesideSpec beside = {};  // or nothing. REQUIRES: `shared` is there
};

// What a layer computes from its embedding of a token (Gemma 3n and 4):
//   projection(activation(gate(x)) * input), input: the layer's columns of ModelConfig::inputs
struct LayerInputSpec {
  int width = 0;
  int64_t first_column = 0;
  backend::GatedActivation activation = backend::GatedActivation::kSilu;
  ProductSpec gate = {};        // [width, d]
  ProductSpec projection = {};  // [d, width]
};

struct SublayerSpec {
  NormSpec norm_before = {};
  NormSpec norm_after = {};
  float residual_scale = 1;  // before norm_after
  std::variant<AttentionSpec, MlpSpec, ExpertsSpec, RecurrentSpec, LayerInputSpec> body;
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
  // A tensor of one element, without a suffix in safetensors files, by which the residual stream is
  // multiplied behind the layer; or none.
  TensorName scale = {};

  // REQUIRES: it has one such sublayer.
  SublayerSpec& attention_sublayer() { return SublayerOf<AttentionSpec>(*this); }
  SublayerSpec& mlp_sublayer() { return SublayerOf<MlpSpec>(*this); }
  AttentionSpec& attention() { return std::get<AttentionSpec>(attention_sublayer().body); }
  MlpSpec& mlp() { return std::get<MlpSpec>(mlp_sublayer().body); }
  const AttentionSpec& attention() const {
    return std::get<AttentionSpec>(SublayerOf<AttentionSpec>(*this).body);
  }
  const MlpSpec& mlp() const { return std::get<MlpSpec>(SublayerOf<MlpSpec>(*this).body); }
  // Null: it has no such sublayer.
  const AttentionSpec* attention_or_null() const { return BodyOrNull<AttentionSpec>(); }
  const RecurrentSpec* recurrence() const { return BodyOrNull<RecurrentSpec>(); }
  template <class Body>
  const Body* BodyOrNull() const {
    for (const SublayerSpec& sublayer : sublayers) {
      if (const auto* body = std::get_if<Body>(&sublayer.body)) return body;
    }
    return nullptr;
  }
  bool has_experts() const {
    return std::any_of(sublayers.begin(), sublayers.end(), [](const SublayerSpec& sublayer) {
      return std::holds_alternative<ExpertsSpec>(sublayer.body);
    });
  }
};

// The attention of the layers that have KV of their own.
inline std::vector<const AttentionSpec*> KvLayers(const std::vector<LayerSpec>& layers) {
  std::vector<const AttentionSpec*> found;
  for (const LayerSpec& layer : layers) {
    const AttentionSpec* attention = layer.attention_or_null();
    if (attention != nullptr && attention->owns_kv()) found.push_back(attention);
  }
  return found;
}

// The last layer that writes KV or a state: behind it, only rows whose logits are wanted are
// computed. The number of layers if none writes.
inline size_t LastWritingLayer(const std::vector<LayerSpec>& layers) {
  for (size_t layer = layers.size(); layer-- > 0;) {
    const AttentionSpec* attention = layers[layer].attention_or_null();
    if (attention != nullptr && attention->owns_kv()) return layer;
    if (layers[layer].recurrence() != nullptr) return layer;
  }
  return layers.size();
}

// visit(product, count) for the products of a sublayer, in the order in which they are computed,
// and how many there are of the kind: of experts more than one, with as many matrices. Routers,
// which stay float32, are not among them, nor is LatentSpec::expand, which is always of 16 bits.
template <class Sublayer, class Visit>
void ForEachProduct(Sublayer& sublayer, const Visit& visit) {
  if (auto* attention = std::get_if<AttentionSpec>(&sublayer.body)) {
    visit(attention->qkv, 1);
    if (attention->latent.q_norm) visit(attention->latent.q_up, 1);
    visit(attention->output, 1);
    return;
  }
  if (auto* recurrent = std::get_if<RecurrentSpec>(&sublayer.body)) {
    visit(recurrent->in, 1);
    if (recurrent->steps.cols > 0) visit(recurrent->steps, 1);
    visit(recurrent->output, 1);
    return;
  }
  if (auto* input = std::get_if<LayerInputSpec>(&sublayer.body)) {
    visit(input->gate, 1);
    visit(input->projection, 1);
    return;
  }
  auto* experts = std::get_if<ExpertsSpec>(&sublayer.body);
  if (experts != nullptr && experts->shared.ffn_dim > 0) {
    if (experts->shared_gate.cols > 0) visit(experts->shared_gate, 1);
    visit(experts->shared.gate_up, 1);
    visit(experts->shared.down, 1);
  }
  auto& mlp = experts != nullptr ? experts->expert : std::get<MlpSpec>(sublayer.body);
  const int count = experts != nullptr ? experts->count : 1;
  visit(mlp.gate_up, count);
  visit(mlp.down, count);
}
// Whether it is a product of each of the sublayer's experts.
inline bool IsOfExperts(const SublayerSpec& sublayer, const ProductSpec& product) {
  const auto* experts = std::get_if<ExpertsSpec>(&sublayer.body);
  return experts != nullptr &&
         (&product == &experts->expert.gate_up || &product == &experts->expert.down);
}
// visit(norm) for the norms that the sublayer has.
template <class Visit>
void ForEachNorm(const SublayerSpec& sublayer, const Visit& visit) {
  for (const NormSpec* norm : {&sublayer.norm_before, &sublayer.norm_after}) {
    if (*norm) visit(*norm);
  }
  if (const auto* recurrent = std::get_if<RecurrentSpec>(&sublayer.body)) {
    if (recurrent->norm) visit(recurrent->norm);
    return;
  }
  if (const auto* experts = std::get_if<ExpertsSpec>(&sublayer.body)) {
    const ExpertsBesideSpec& beside = experts->beside;
    for (const NormSpec* norm : {&beside.mlp_after, &beside.before, &beside.after}) {
      if (*norm) visit(*norm);
    }
    return;
  }
  const auto* attention = std::get_if<AttentionSpec>(&sublayer.body);
  if (attention == nullptr) return;
  for (const NormSpec* norm : {&attention->q_norm, &attention->k_norm, &attention->latent.norm,
                               &attention->latent.q_norm}) {
    if (*norm) visit(*norm);
  }
}

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_LAYER_SPEC_H_
