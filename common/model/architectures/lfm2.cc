// LFM2: short convolutions in most layers, attention in the others; and the same with experts.
#include <cstdint>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
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

constexpr MlpNames kMlp = {{"feed_forward.w1", "ffn_gate"},
                           {"feed_forward.w3", "ffn_up"},
                           {"feed_forward.w2", "ffn_down"}};

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

// Reads what both have. convolves: whether a layer does, where the config has no layer_types.
absl::StatusOr<ModelConfig> Describe(const JsonFields& config, absl::string_view ffn_key,
                                     absl::FunctionRef<bool(int layer)> convolves) {
  BATON_ASSIGN_OR_RETURN(const double eps, config.RealOr("norm_eps", 1e-20, 1, 1e-5));
  BATON_ASSIGN_OR_RETURN(
      ModelConfig model,
      ReadDense(config,
                {.tied_embeddings = true, .kv_heads = 8, .norm_eps = eps, .ffn_key = ffn_key}));
  BATON_ASSIGN_OR_RETURN(model.tied_embeddings,
                         config.Bool("tie_embedding", model.tied_embeddings));
  model.norm_eps = static_cast<float>(eps);  // whatever rms_norm_eps says
  RopeRequest rope = RopeRequestOf(model);
  rope.default_theta = 1e6;
  BATON_RETURN_IF_ERROR(SetRope(config, rope, &model));
  model.final_norm.name = {"embedding_norm", "token_embd_norm"};
  BATON_ASSIGN_OR_RETURN(const std::vector<bool> recurrent,
                         ReadRecurrentLayers(config, model.layers.size(), "conv", convolves));
  BATON_ASSIGN_OR_RETURN(const RecurrentSpec conv, ShortConvOf(config, model.hidden_dim));
  for (size_t i = 0; i < model.layers.size(); ++i) {
    LayerSpec& layer = model.layers[i];
    SublayerSpec& mixer = layer.attention_sublayer();
    mixer.norm_before.name = {"operator_norm", "attn_norm"};
    layer.mlp_sublayer().norm_before.name = {"ffn_norm", "ffn_norm"};
    SetMlp(layer.mlp().ffn_dim, kMlp, &layer.mlp());
    if (recurrent[i]) {
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

absl::StatusOr<ModelConfig> DescribeLfm2(const JsonFields& config) {
  for (const absl::string_view key : kUnread) config.Ignore(key);
  const bool old_key = config.Has("block_ff_dim");
  config.Ignore("intermediate_size");
  BATON_ASSIGN_OR_RETURN(const std::vector<int> indexes,
                         config.Ints("full_attn_idxs", 0, kMaxLayers));
  const bool all_attend = !config.Has("full_attn_idxs");
  BATON_ASSIGN_OR_RETURN(
      ModelConfig model,
      Describe(config, old_key ? "block_ff_dim" : "intermediate_size",
               [&](int layer) { return !all_attend && !absl::c_linear_search(indexes, layer); }));
  BATON_ASSIGN_OR_RETURN(const int ffn, FfnDim(config, model.layers[0].mlp().ffn_dim));
  for (LayerSpec& layer : model.layers) SetMlp(ffn, kMlp, &layer.mlp());
  return model;
}

absl::StatusOr<ModelConfig> DescribeLfm2Moe(const JsonFields& config) {
  if (!config.Has("layer_types")) {
    return config.Invalid("layer_types", "found nothing, expected a list of strings");
  }
  BATON_ASSIGN_OR_RETURN(ModelConfig model,
                         Describe(config, "intermediate_size", [](int) { return false; }));
  BATON_ASSIGN_OR_RETURN(const int dense, config.IntOr("num_dense_layers", 0, kMaxLayers, 2));
  BATON_ASSIGN_OR_RETURN(const double scale, config.RealOr("routed_scaling_factor", 0, 1e6, 1));
  BATON_ASSIGN_OR_RETURN(const bool normalized, config.Bool("norm_topk_prob", true));
  BATON_ASSIGN_OR_RETURN(const bool biased, config.Bool("use_expert_bias", true));
  BATON_RETURN_IF_ERROR(AddExperts(
      config,
      {.ffn_key = "moe_intermediate_size",
       .router = {"feed_forward.gate", "ffn_gate_inp"},
       .gate = {"feed_forward.experts.*.w1", "ffn_gate_exps.*"},
       .up = {"feed_forward.experts.*.w3", "ffn_up_exps.*"},
       .down = {"feed_forward.experts.*.w2", "ffn_down_exps.*"}},
      {.normalized = normalized, .sigmoid = true, .scale = static_cast<float>(scale)},
      [&](int layer) { return layer >= dense; }, &model));
  for (LayerSpec& layer : model.layers) {
    auto* experts = std::get_if<ExpertsSpec>(&layer.sublayers[1].body);
    if (experts == nullptr || !biased) continue;
    experts->choice_bias = {"feed_forward.expert_bias", "exp_probs_b.bias"};
  }
  return model;
}

absl::Status AddBothGguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(config.CopyReal("attention.layer_norm_rms_epsilon", "norm_eps"));
  return config.CopyInteger("shortconv.l_cache", "conv_L_cache");
}

// The size of the feed-forward is there as it is.
absl::Status AddLfm2Gguf(GgufConfig& config) {
  config.AddJson("block_auto_adjust_ff_dim", "false");
  return AddBothGguf(config);
}

absl::Status AddLfm2MoeGguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(AddBothGguf(config));
  BATON_RETURN_IF_ERROR(config.CopyExperts("num_experts", "moe_intermediate_size"));
  BATON_RETURN_IF_ERROR(config.CopyInteger("leading_dense_block_count", "num_dense_layers"));
  BATON_RETURN_IF_ERROR(config.CopyReal("expert_weights_scale", "routed_scaling_factor"));
  BATON_RETURN_IF_ERROR(config.CopyBool("expert_weights_norm", "norm_topk_prob", true));
  BATON_ASSIGN_OR_RETURN(const bool sigmoid, config.RoutesBySigmoid());
  if (sigmoid) return absl::OkStatus();
  return config.Unsupported("expert_gating_func", "found a softmax, expected a sigmoid");
}

}  // namespace

const Architecture kLfm2 = {
    .name = "Lfm2ForCausalLM",
    .model_type = "lfm2",
    .describe = DescribeLfm2,
    .gguf = "lfm2",
    .gguf_recurrent = "conv",
    .add_gguf = AddLfm2Gguf,
};
const Architecture kLfm2Moe = {
    .name = "Lfm2MoeForCausalLM",
    .model_type = "lfm2_moe",
    .describe = DescribeLfm2Moe,
    .gguf = "lfm2moe",
    .gguf_experts = true,
    .gguf_recurrent = "conv",
    .add_gguf = AddLfm2MoeGguf,
};

}  // namespace baton::model
