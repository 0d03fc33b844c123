#include "common/model/architectures/reading.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

absl::StatusOr<backend::GatedActivation> ReadActivation(const JsonFields& config,
                                                        const ClassDefaults& defaults) {
  BATON_ASSIGN_OR_RETURN(const auto found, config.OptionalString(defaults.activation_key));
  const absl::string_view name = found ? absl::string_view(*found) : defaults.activation;
  // MLPs of one class either have a gate or have none.
  if (defaults.activation == kSquaredRelu) {
    if (name == kSquaredRelu) return backend::GatedActivation::kSquaredRelu;
    return config.Unsupported(
        defaults.activation_key,
        absl::StrCat("found ", json::Quoted(name), ", expected ", json::Quoted(kSquaredRelu)));
  }
  if (name == "silu" || name == "swish") return backend::GatedActivation::kSilu;
  if (name == "gelu_pytorch_tanh") return backend::GatedActivation::kGeluTanh;
  return config.Unsupported(
      defaults.activation_key,
      absl::StrCat("found ", json::Quoted(name), ", expected \"silu\" or \"gelu_pytorch_tanh\""));
}

absl::StatusOr<int> Required(const JsonFields& config, absl::string_view key, int highest,
                             std::optional<int> if_absent) {
  if (if_absent) return config.IntOr(key, 1, highest, *if_absent);
  return config.Int(key, 1, highest);
}

absl::StatusOr<AttentionSpec> ReadAttention(const JsonFields& config, int hidden_dim,
                                            const ClassDefaults& defaults) {
  AttentionSpec attention;
  BATON_ASSIGN_OR_RETURN(attention.query_heads,
                         Required(config, "num_attention_heads", kMaxHeads, defaults.query_heads));
  const int kv_heads = config.IsNull("num_key_value_heads")
                           ? attention.query_heads
                           : defaults.kv_heads.value_or(attention.query_heads);
  BATON_ASSIGN_OR_RETURN(attention.kv_heads,
                         config.IntOr("num_key_value_heads", 1, kMaxHeads, kv_heads));
  if (attention.query_heads % attention.kv_heads != 0) {
    return config.Invalid("num_key_value_heads", absl::StrCat("found ", attention.kv_heads,
                                                              ", expected a divisor of "
                                                              "num_attention_heads (",
                                                              attention.query_heads, ")"));
  }
  BATON_ASSIGN_OR_RETURN(auto head_dim, config.OptionalInt("head_dim", 2, kLargestHeadDim));
  if (!head_dim) head_dim = defaults.head_dim;
  if (!head_dim && hidden_dim % attention.query_heads != 0) {
    return config.Invalid("hidden_size", absl::StrCat("found ", hidden_dim,
                                                      " without a head_dim, expected a "
                                                      "multiple of num_attention_heads (",
                                                      attention.query_heads, ")"));
  }
  attention.head_dim = head_dim.value_or(hidden_dim / attention.query_heads);
  if (attention.head_dim < 2 || attention.head_dim > kLargestHeadDim ||
      attention.head_dim % 2 != 0) {
    return config.Invalid(
        "head_dim", absl::StrCat("found ", attention.head_dim, ", expected an even number in [2, ",
                                 kLargestHeadDim, "]"));
  }
  attention.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(attention.head_dim)));
  attention.qkv.parts = {{{"self_attn.q_proj", "attn_q"}, attention.q_width()},
                         {{"self_attn.k_proj", "attn_k"}, attention.kv_width()},
                         {{"self_attn.v_proj", "attn_v"}, attention.kv_width()}};
  attention.qkv.cols = hidden_dim;
  BATON_ASSIGN_OR_RETURN(attention.qkv.bias,
                         config.Bool("attention_bias", defaults.attention_bias));
  attention.output.parts = {{{"self_attn.o_proj", "attn_output"}, hidden_dim}};
  attention.output.cols = attention.q_width();
  return attention;
}

absl::StatusOr<MlpSpec> ReadMlp(const JsonFields& config, int hidden_dim,
                                const ClassDefaults& defaults) {
  MlpSpec mlp;
  BATON_ASSIGN_OR_RETURN(mlp.activation, ReadActivation(config, defaults));
  BATON_ASSIGN_OR_RETURN(const int ffn,
                         Required(config, defaults.ffn_key, kMaxFfn, defaults.ffn_dim));
  mlp.gate_up.cols = hidden_dim;
  mlp.down.parts = {{{}, hidden_dim}};
  SetMlp(ffn,
         {{"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"}, {"mlp.down_proj", "ffn_down"}},
         &mlp);
  return mlp;
}

}  // namespace

absl::StatusOr<ModelConfig> ReadDense(const JsonFields& config, const ClassDefaults& defaults) {
  ModelConfig model;
  BATON_ASSIGN_OR_RETURN(model.hidden_dim, config.Int("hidden_size", 1, kMaxHidden));
  BATON_ASSIGN_OR_RETURN(model.vocab_size,
                         Required(config, "vocab_size", kMaxVocab, defaults.vocab_size));
  BATON_ASSIGN_OR_RETURN(model.max_positions, Required(config, "max_position_embeddings",
                                                       kMaxPositions, defaults.max_positions));
  BATON_ASSIGN_OR_RETURN(model.tied_embeddings,
                         config.Bool("tie_word_embeddings", defaults.tied_embeddings));
  BATON_ASSIGN_OR_RETURN(const int layer_count,
                         Required(config, "num_hidden_layers", kMaxLayers, defaults.layers));
  const NormSpec norm_before = {{"input_layernorm", "attn_norm"}, model.hidden_dim};
  const NormSpec mlp_norm = {{"post_attention_layernorm", "ffn_norm"}, model.hidden_dim};
  BATON_ASSIGN_OR_RETURN(AttentionSpec attention,
                         ReadAttention(config, model.hidden_dim, defaults));
  BATON_ASSIGN_OR_RETURN(MlpSpec mlp, ReadMlp(config, model.hidden_dim, defaults));
  LayerSpec layer;
  layer.sublayers.push_back({.norm_before = norm_before, .body = std::move(attention)});
  layer.sublayers.push_back({.norm_before = mlp_norm, .body = std::move(mlp)});
  model.layers.assign(static_cast<size_t>(layer_count), layer);
  model.final_norm = {{"norm", "output_norm"}, model.hidden_dim};
  double eps = 0;
  if (defaults.norm_eps) {
    BATON_ASSIGN_OR_RETURN(eps, config.RealOr("rms_norm_eps", 1e-20, 1, *defaults.norm_eps));
  } else {
    BATON_ASSIGN_OR_RETURN(eps, config.Real("rms_norm_eps", 1e-20, 1));
  }
  model.norm_eps = static_cast<float>(eps);
  return model;
}

RopeRequest RopeRequestOf(const ModelConfig& model) {
  return {.head_dim = model.layers[0].attention().head_dim, .max_positions = model.max_positions};
}

int AddRope(const Rope& rope, ModelConfig* model) {
  model->ropes.push_back(rope.spec);
  model->max_positions = std::max(model->max_positions, rope.extended_positions);
  model->long_inverse_frequencies = rope.long_inverse_frequencies;
  model->original_positions = rope.original_positions;
  return static_cast<int>(model->ropes.size()) - 1;
}

absl::Status SetRope(const JsonFields& config, RopeRequest request, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const Rope rope, ReadRope(config, request));
  AddRope(rope, model);
  return absl::OkStatus();
}

absl::Status SetRope(const JsonFields& config, ModelConfig* model) {
  return SetRope(config, RopeRequestOf(*model), model);
}

absl::Status CheckLayerTypes(const JsonFields& config, const ModelConfig& model) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  if (types.empty()) return absl::OkStatus();
  if (types.size() != model.layers.size()) {
    return config.Invalid("layer_types", absl::StrCat("found ", types.size(), " entries, expected ",
                                                      model.layers.size()));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    const absl::string_view expected =
        model.layers[i].attention().window > 0 ? kSlidingAttention : kFullAttention;
    if (types[i] != expected) {
      return config.Unsupported(
          absl::StrCat("layer_types[", i, "]"),
          absl::StrCat("found ", json::Quoted(types[i]), ", expected ", expected));
    }
  }
  return absl::OkStatus();
}

absl::Status SetWindows(const JsonFields& config, int window,
                        absl::FunctionRef<bool(int layer)> slides_by_default, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  for (size_t i = 0; i < model->layers.size(); ++i) {
    const bool slides = types.empty()      ? slides_by_default(static_cast<int>(i))
                        : i < types.size() ? types[i] == kSlidingAttention
                                           : false;
    model->layers[i].attention().window = slides ? window : 0;
  }
  return CheckLayerTypes(config, *model);
}

absl::StatusOr<std::vector<bool>> ReadRecurrentLayers(
    const JsonFields& config, size_t layers, absl::string_view recurrent,
    absl::FunctionRef<bool(int layer)> by_default) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  if (!types.empty() && types.size() != layers) {
    return config.Invalid("layer_types",
                          absl::StrCat("found ", types.size(), " entries, expected ", layers));
  }
  std::vector<bool> is_recurrent(layers);
  for (size_t i = 0; i < layers; ++i) {
    if (types.empty()) {
      is_recurrent[i] = by_default(static_cast<int>(i));
      continue;
    }
    // The names that Transformers had before version 5 mean the same.
    const absl::string_view type = types[i] == "mamba"       ? kLinearAttention
                                   : types[i] == "attention" ? kFullAttention
                                                             : absl::string_view(types[i]);
    is_recurrent[i] = type == recurrent;
    if (is_recurrent[i] || type == kFullAttention) continue;
    return config.Unsupported(
        absl::StrCat("layer_types[", i, "]"),
        absl::StrCat("found ", json::Quoted(types[i]), ", expected ", json::Quoted(recurrent),
                     " or ", json::Quoted(kFullAttention)));
  }
  return is_recurrent;
}

absl::StatusOr<int> ReadMultiple(const JsonFields& config, absl::string_view key, int step,
                                 int highest, int if_absent) {
  BATON_ASSIGN_OR_RETURN(const int found, config.IntOr(key, 1, highest, if_absent));
  if (found % step == 0) return found;
  return config.Unsupported(key, absl::StrCat("found ", found, ", expected a multiple of ", step));
}

void SetStateSpace(const StateSpaceNames& names, bool biased, const ModelConfig& model,
                   RecurrentSpec* mamba) {
  const int64_t d = model.hidden_dim, width = mamba->width();
  mamba->kind = RecurrentSpec::Kind::kStateSpace;
  mamba->conv = {names.conv, "ssm_conv1d"};
  mamba->in = {.parts = {{{names.in, "ssm_in"}, width + mamba->conv_width() + mamba->heads}},
               .cols = d,
               .bias = biased};
  mamba->decay = {names.decay, "ssm_a"};
  mamba->step_bias = {names.step_bias, "ssm_dt.bias"};
  mamba->skip = {names.skip, "ssm_d"};
  mamba->norm = {{names.norm, "ssm_norm"}, width};
  mamba->norm_group = width / mamba->key_heads;
  mamba->norm_eps = model.norm_eps;
  mamba->output = {.parts = {{{names.output, "ssm_out"}, d}}, .cols = width, .bias = biased};
}

absl::Status ExpectOne(const JsonFields& config, absl::string_view key) {
  BATON_ASSIGN_OR_RETURN(const int found, config.IntOr(key, 0, kMaxExperts, 1));
  if (found == 1) return absl::OkStatus();
  return config.Unsupported(key, absl::StrCat("found ", found, ", expected 1"));
}

absl::Status ExpectText(const JsonFields& config, absl::string_view key,
                        absl::string_view expected) {
  BATON_ASSIGN_OR_RETURN(const auto found, config.OptionalString(key));
  if (!found || *found == expected) return absl::OkStatus();
  return config.Unsupported(key,
                            absl::StrCat("found ", json::Quoted(*found), ", expected ", expected));
}

void SetMlp(int ffn_dim, const MlpNames& names, MlpSpec* mlp) {
  mlp->ffn_dim = ffn_dim;
  mlp->gate_up.parts = {{names.up, ffn_dim}};
  if (mlp->has_gate()) mlp->gate_up.parts.insert(mlp->gate_up.parts.begin(), {names.gate, ffn_dim});
  mlp->down.parts[0].name = names.down;
  mlp->down.cols = ffn_dim;
}

absl::Status SetRopesByWindow(const JsonFields& config, RopeRequest full, RopeRequest sliding,
                              ModelConfig* model) {
  full.layer_type = kFullAttention;
  sliding.layer_type = kSlidingAttention;
  BATON_ASSIGN_OR_RETURN(const Rope of_full, ReadRope(config, full));
  BATON_ASSIGN_OR_RETURN(const Rope of_sliding, ReadRope(config, sliding));
  const int full_rope = AddRope(of_full, model), sliding_rope = AddRope(of_sliding, model);
  for (LayerSpec& layer : model->layers) {
    AttentionSpec& attention = layer.attention();
    attention.rope = attention.window > 0 ? sliding_rope : full_rope;
  }
  return absl::OkStatus();
}

namespace {

absl::StatusOr<int> ExpertCount(const JsonFields& config, const ExpertNames& names) {
  if (!names.count_key.empty()) return config.Int(names.count_key, 1, kMaxExperts);
  // Transformers has one for the other, and saves either.
  BATON_ASSIGN_OR_RETURN(const auto count, config.OptionalInt("num_experts", 1, kMaxExperts));
  BATON_ASSIGN_OR_RETURN(const auto local, config.OptionalInt("num_local_experts", 1, kMaxExperts));
  if ((count || local) && count.value_or(*local) == local.value_or(*count)) {
    return count ? *count : *local;
  }
  return config.Invalid(
      "num_experts",
      absl::StrCat("found ", count ? absl::StrCat(*count) : "nothing", " beside num_local_experts ",
                   local ? absl::StrCat(*local) : "nothing",
                   ", expected one of both, or the same"));
}

}  // namespace

absl::Status AddExperts(const JsonFields& config, const ExpertNames& names,
                        backend::ExpertRouting routing,
                        absl::FunctionRef<bool(int layer)> has_experts, ModelConfig* model) {
  // What only training reads.
  for (const char* key : {"output_router_logits", "router_jitter_noise"}) config.Ignore(key);
  ExpertsSpec experts;
  BATON_ASSIGN_OR_RETURN(experts.count, ExpertCount(config, names));
  experts.routing = routing;
  BATON_ASSIGN_OR_RETURN(experts.routing.per_token,
                         config.Int("num_experts_per_tok", 1, experts.count));
  BATON_ASSIGN_OR_RETURN(const int ffn, config.Int(names.ffn_key, 1, kMaxFfn));
  experts.router.parts = {{names.router, experts.count}};
  experts.router.cols = model->hidden_dim;
  for (size_t i = 0; i < model->layers.size(); ++i) {
    if (!has_experts(static_cast<int>(i))) continue;
    SublayerSpec& sublayer = model->layers[i].mlp_sublayer();
    experts.expert = std::get<MlpSpec>(sublayer.body);
    SetMlp(ffn, {names.gate, names.up, names.down}, &experts.expert);
    sublayer.body = experts;
  }
  return absl::OkStatus();
}

absl::StatusOr<ClassDefaults> LatentDefaults(const JsonFields& config, ClassDefaults defaults) {
  BATON_ASSIGN_OR_RETURN(const int rotated, config.Int("qk_rope_head_dim", 2, kLargestHeadDim));
  if (rotated % 2 != 0) {
    return config.Invalid("qk_rope_head_dim",
                          absl::StrCat("found ", rotated, ", expected an even number"));
  }
  defaults.head_dim = rotated;
  return defaults;
}

absl::Status SetLatentAttention(const JsonFields& config, ModelConfig* model) {
  AttentionSpec attention = model->layers[0].attention();
  LatentSpec& latent = attention.latent;
  const int heads = attention.query_heads, d = model->hidden_dim;
  if (attention.kv_heads != heads) {
    return config.Unsupported("num_key_value_heads",
                              absl::StrCat("found ", attention.kv_heads, ", expected ", heads,
                                           ", as num_attention_heads: its keys come of latents"));
  }
  if (attention.qkv.bias) return config.Unsupported("attention_bias", "found true, expected false");
  BATON_ASSIGN_OR_RETURN(latent.rotated, config.Int("qk_rope_head_dim", 2, kLargestHeadDim));
  if (attention.head_dim != latent.rotated) {
    return config.Unsupported("head_dim", absl::StrCat("found ", attention.head_dim, ", expected ",
                                                       latent.rotated, ", as qk_rope_head_dim"));
  }
  BATON_ASSIGN_OR_RETURN(latent.rank, config.Int("kv_lora_rank", 16, kLargestHeadDim));
  BATON_ASSIGN_OR_RETURN(latent.plain, config.Int("qk_nope_head_dim", 1, kLargestHeadDim));
  BATON_ASSIGN_OR_RETURN(latent.value_dim, config.Int("v_head_dim", 1, kLargestHeadDim));
  // The attention kernels take values in steps of so many elements.
  constexpr int kStep = 16;
  if (latent.rank % kStep != 0) {
    return config.Unsupported(
        "kv_lora_rank", absl::StrCat("found ", latent.rank, ", expected a multiple of ", kStep));
  }
  BATON_ASSIGN_OR_RETURN(const auto q_rank, config.OptionalInt("q_lora_rank", 1, kMaxHidden));
  // Some files say how large keys are, all in all, which follows.
  BATON_ASSIGN_OR_RETURN(const auto key_dim, config.OptionalInt("qk_head_dim", 1, kMaxHidden));
  const int whole = latent.plain + latent.rotated;
  if (key_dim.value_or(whole) != whole) {
    return config.Unsupported("qk_head_dim",
                              absl::StrCat("found ", *key_dim, ", expected ", whole));
  }
  // The classes in Transformers give these norms their own constant, whatever rms_norm_eps says.
  latent.norm_eps = 1e-6F;
  latent.norm = {{"self_attn.kv_a_layernorm", "attn_kv_a_norm"}, latent.rank};
  const MatrixSpec of_kv = {{"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                            latent.rank + latent.rotated};
  const int64_t q_width = heads * int64_t{whole};
  if (q_rank) {
    latent.q_norm = {{"self_attn.q_a_layernorm", "attn_q_a_norm"}, *q_rank};
    latent.q_up.parts = {{{"self_attn.q_b_proj", "attn_q_b"}, q_width}};
    latent.q_up.cols = *q_rank;
    attention.qkv.parts = {{{"self_attn.q_a_proj", "attn_q_a"}, *q_rank}, of_kv};
  } else {
    attention.qkv.parts = {{{"self_attn.q_proj", "attn_q"}, q_width}, of_kv};
  }
  attention.qkv.cols = d;
  attention.output.cols = heads * int64_t{latent.value_dim};
  BATON_ASSIGN_OR_RETURN(const Rope rope, ReadRope(config, RopeRequestOf(*model)));
  attention.rope = AddRope(rope, model);
  attention.kv_heads = 1;
  attention.head_dim = latent.rank + latent.rotated;
  attention.scale = static_cast<float>(rope.score_magnitude * rope.score_magnitude /
                                       std::sqrt(static_cast<double>(whole)));
  for (LayerSpec& layer : model->layers) layer.attention() = attention;
  return absl::OkStatus();
}

void RemoveNormsBefore(ModelConfig* model) {
  for (LayerSpec& layer : model->layers) {
    for (SublayerSpec& sublayer : layer.sublayers) sublayer.norm_before = {};
  }
}

void AddPostNorms(ModelConfig* model) {
  for (LayerSpec& layer : model->layers) {
    layer.attention_sublayer().norm_after = {{"post_attention_layernorm", "post_attention_norm"},
                                             model->hidden_dim};
    layer.mlp_sublayer().norm_after = {{"post_feedforward_layernorm", "post_ffw_norm"},
                                       model->hidden_dim};
  }
}

void AddQkNorms(bool all_heads, ModelConfig* model) {
  for (LayerSpec& layer : model->layers) {
    AttentionSpec& attention = layer.attention();
    attention.q_norm = {{"self_attn.q_norm", "attn_q_norm"},
                        all_heads ? attention.q_width() : attention.head_dim};
    attention.k_norm = {{"self_attn.k_norm", "attn_k_norm"},
                        all_heads ? attention.kv_width() : attention.head_dim};
  }
}

}  // namespace baton::model
