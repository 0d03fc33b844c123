// LFM2: short convolutions in most layers, attention in the others.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

// Keys of published configs that the class does not read.
constexpr absl::string_view kUnread[] = {
    "block_dim",
    "block_norm_eps",
    "block_use_swiglu",
    "block_mlp_init_scale",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_dim",
    "conv_dim_out",
    "conv_use_xavier_init",
    "num_heads",
    "use_pos_enc",
};

// block_auto_adjust_ff_dim: two thirds, times a factor, up to a multiple.
absl::StatusOr<int> FfnDim(const JsonFields& config, int ffn) {
  BATON_ASSIGN_OR_RETURN(const bool adjusts, config.Bool("block_auto_adjust_ff_dim", true));
  BATON_ASSIGN_OR_RETURN(const int multiple, config.IntOr("block_multiple_of", 1, kMaxFfn, 256));
  BATON_ASSIGN_OR_RETURN(const double factor,
                         config.RealOr("block_ffn_dim_multiplier", 1e-3, 1e3, 1));
  if (!adjusts) return ffn;
  const int64_t two_thirds = int64_t{2} * ffn / 3;
  int64_t adjusted = two_thirds;
  if (!config.IsNull("block_ffn_dim_multiplier")) {
    adjusted = static_cast<int64_t>(factor * static_cast<double>(two_thirds));
    adjusted = (adjusted + multiple - 1) / multiple * multiple;
  }
  if (adjusted >= 1 && adjusted <= kMaxFfn) return static_cast<int>(adjusted);
  return config.Invalid("intermediate_size", absl::StrCat("found ", ffn, ", which becomes ",
                                                          adjusted, ", expected 1 to ", kMaxFfn));
}

// Whether each layer has attention.
absl::StatusOr<std::vector<bool>> AttentionOf(const JsonFields& config, size_t layers) {
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  BATON_ASSIGN_OR_RETURN(const std::vector<int> indexes,
                         config.Ints("full_attn_idxs", 0, kMaxLayers));
  std::vector<bool> attends(layers, types.empty() && !config.Has("full_attn_idxs"));
  if (types.empty()) {
    for (const int index : indexes) {
      if (static_cast<size_t>(index) < layers) attends[static_cast<size_t>(index)] = true;
    }
    return attends;
  }
  if (types.size() != layers) {
    return config.Invalid("layer_types",
                          absl::StrCat("found ", types.size(), " entries, expected ", layers));
  }
  for (size_t i = 0; i < layers; ++i) {
    attends[i] = types[i] == kFullAttention;
    if (attends[i] || types[i] == "conv") continue;
    return config.Unsupported(absl::StrCat("layer_types[", i, "]"),
                              absl::StrCat("found ", json::Quoted(types[i]),
                                           ", expected \"conv\" or \"full_attention\""));
  }
  return attends;
}

absl::StatusOr<RecurrentSpec> ShortConvOf(const JsonFields& config, int hidden_dim) {
  RecurrentSpec conv;
  conv.kind = RecurrentSpec::Kind::kShortConv;
  BATON_ASSIGN_OR_RETURN(conv.taps, config.IntOr("conv_L_cache", 2, backend::kMostConvTaps, 3));
  BATON_ASSIGN_OR_RETURN(conv.conv_bias, config.Bool("conv_bias", false));
  if (hidden_dim % backend::kStateLanes != 0) {
    return config.Unsupported(
        "hidden_size",
        absl::StrCat("found ", hidden_dim, ", expected a multiple of ", backend::kStateLanes));
  }
  conv.heads = 1;
  conv.head_dim = hidden_dim;
  conv.conv = {"conv.conv", "shortconv.conv"};
  conv.in = {.parts = {{{"conv.in_proj", "shortconv.in_proj"}, 3 * int64_t{hidden_dim}}},
             .cols = hidden_dim,
             .bias = conv.conv_bias};
  conv.output = {.parts = {{{"conv.out_proj", "shortconv.out_proj"}, hidden_dim}},
                 .cols = hidden_dim,
                 .bias = conv.conv_bias};
  return conv;
}

absl::StatusOr<ModelConfig> DescribeLfm2(const JsonFields& config) {
  for (const absl::string_view key : kUnread) config.Ignore(key);
  BATON_ASSIGN_OR_RETURN(const double eps, config.RealOr("norm_eps", 1e-20, 1, 1e-5));
  ClassDefaults defaults = {.tied_embeddings = true, .kv_heads = 8, .norm_eps = eps};
  if (config.Has("block_ff_dim")) defaults.ffn_key = "block_ff_dim";
  config.Ignore("intermediate_size");
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, defaults));
  BATON_ASSIGN_OR_RETURN(model.tied_embeddings,
                         config.Bool("tie_embedding", model.tied_embeddings));
  RopeRequest rope = RopeRequestOf(model);
  rope.default_theta = 1e6;
  BATON_RETURN_IF_ERROR(SetRope(config, rope, &model));
  model.final_norm.name = {"embedding_norm", "token_embd_norm"};
  BATON_ASSIGN_OR_RETURN(const std::vector<bool> attends, AttentionOf(config, model.layers.size()));
  BATON_ASSIGN_OR_RETURN(const RecurrentSpec conv, ShortConvOf(config, model.hidden_dim));
  BATON_ASSIGN_OR_RETURN(const int ffn, FfnDim(config, model.layers[0].mlp().ffn_dim));
  for (size_t i = 0; i < model.layers.size(); ++i) {
    LayerSpec& layer = model.layers[i];
    SublayerSpec& mixer = layer.attention_sublayer();
    mixer.norm_before.name = {"operator_norm", "attn_norm"};
    layer.mlp_sublayer().norm_before.name = {"ffn_norm", "ffn_norm"};
    MlpSpec& mlp = layer.mlp();
    mlp.ffn_dim = ffn;
    mlp.gate_up.parts = {{{"feed_forward.w1", "ffn_gate"}, ffn},
                         {{"feed_forward.w3", "ffn_up"}, ffn}};
    mlp.down.parts = {{{"feed_forward.w2", "ffn_down"}, model.hidden_dim}};
    mlp.down.cols = ffn;
    if (!attends[i]) {
      mixer.body = conv;
      continue;
    }
    AttentionSpec& attention = layer.attention();
    attention.q_norm = {{"self_attn.q_layernorm", "attn_q_norm"}, attention.head_dim};
    attention.k_norm = {{"self_attn.k_layernorm", "attn_k_norm"}, attention.head_dim};
    attention.output.parts[0].name = {"self_attn.out_proj", "attn_output"};
  }
  return model;
}

}  // namespace

const Architecture kLfm2 = {
    .name = "Lfm2ForCausalLM",
    .model_type = "lfm2",
    .describe = DescribeLfm2,
};

}  // namespace baton::model
