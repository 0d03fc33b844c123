// Gemma 2 and Gemma 3's text models: norms before and after each sublayer, stored less one; a
// scaled embedding; GELU; windows in most layers. Gemma 2 caps its scores and logits; Gemma 3 norms
// queries and keys, and rotates layers with a window by another base, never scaled.
#include <cmath>

#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

constexpr int kGemmaWindow = 4096;
constexpr ClassDefaults kGemmaDefaults = {
    .tied_embeddings = true,
    .head_dim = 256,
    .kv_heads = 4,
    .max_positions = 131072,
    .vocab_size = 262208,
    .query_heads = 8,
    .norm_eps = 1e-6,
    .activation_key = "hidden_activation",
    .activation = "gelu_pytorch_tanh",
};

// What both have in common.
absl::StatusOr<ModelConfig> DescribeGemma(const JsonFields& config, const ClassDefaults& defaults) {
  config.Ignore("hidden_act");  // hidden_activation counts, whatever this says
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, defaults));
  BATON_ASSIGN_OR_RETURN(const double scalar,
                         config.RealOr("query_pre_attn_scalar", 1e-6, 1e6, 256));
  BATON_ASSIGN_OR_RETURN(const double cap, config.RealOr("final_logit_softcapping", 0, 1e6, 0));
  model.logit_cap = static_cast<float>(cap);
  model.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(model.hidden_dim)));
  AddPostNorms(&model);
  model.final_norm.less_one = true;
  for (LayerSpec& layer : model.layers) {
    layer.mlp_sublayer().norm_before.name = {"pre_feedforward_layernorm", "ffn_norm"};
    layer.attention().scale = static_cast<float>(1 / std::sqrt(scalar));
    for (SublayerSpec& sublayer : layer.sublayers) {
      sublayer.norm_before.less_one = sublayer.norm_after.less_one = true;
    }
  }
  return model;
}

absl::StatusOr<ModelConfig> DescribeGemma2(const JsonFields& config) {
  ClassDefaults defaults = kGemmaDefaults;
  defaults.max_positions = 8192;
  defaults.vocab_size = 256000;
  BATON_ASSIGN_OR_RETURN(ModelConfig model, DescribeGemma(config, defaults));
  if (!config.Has("final_logit_softcapping") && !config.IsNull("final_logit_softcapping")) {
    model.logit_cap = 30;
  }
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  const double if_absent = config.IsNull("attn_logit_softcapping") ? 0 : 50;
  BATON_ASSIGN_OR_RETURN(const double cap,
                         config.RealOr("attn_logit_softcapping", 0, 1e6, if_absent));
  for (LayerSpec& layer : model.layers) layer.attention().score_cap = static_cast<float>(cap);
  BATON_ASSIGN_OR_RETURN(const int window,
                         config.IntOr("sliding_window", 1, kMaxPositions, kGemmaWindow));
  BATON_RETURN_IF_ERROR(SetWindows(
      config, window, [](int layer) { return layer % 2 == 0; }, &model));
  return model;
}

absl::StatusOr<ModelConfig> DescribeGemma3(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, DescribeGemma(config, kGemmaDefaults));
  BATON_ASSIGN_OR_RETURN(const bool both_ways, config.Bool("use_bidirectional_attention", false));
  if (both_ways) {
    return config.Unsupported("use_bidirectional_attention", "found true, expected false");
  }
  config.Ignore("attn_logit_softcapping");  // Gemma3's class in Transformers does not apply it
  AddQkNorms(/*all_heads=*/false, &model);
  BATON_ASSIGN_OR_RETURN(const int window,
                         config.IntOr("sliding_window", 1, kMaxPositions, kGemmaWindow));
  BATON_ASSIGN_OR_RETURN(const int pattern,
                         config.IntOr("sliding_window_pattern", 1, kMaxLayers, 6));
  config.Ignore("_sliding_window_pattern");  // stands beside layer_types, which count
  BATON_RETURN_IF_ERROR(SetWindows(
      config, window, [&](int layer) { return (layer + 1) % pattern != 0; }, &model));
  RopeRequest full = RopeRequestOf(model), sliding = full;
  full.default_theta = 1e6;
  sliding.default_theta = 1e4;
  sliding.theta_key = "rope_local_base_freq";
  sliding.scales = false;
  BATON_RETURN_IF_ERROR(SetRopesByWindow(config, full, sliding, &model));
  for (LayerSpec& layer : model.layers) {
    AttentionSpec& attention = layer.attention();
    attention.q_norm.less_one = attention.k_norm.less_one = true;
  }
  return model;
}

// The files leave to the reader: which layers slide (unless they say so), the base of those that
// do, and, for the largest model of each family, that queries are not scaled by the head's size.
absl::Status AddGemmaGguf(GgufConfig& config, int largest_models_layers) {
  BATON_ASSIGN_OR_RETURN(const bool slides, config.CopyWindow());
  if (!slides) return config.Missing("attention.sliding_window", "an integer");
  BATON_RETURN_IF_ERROR(config.CopyReal("final_logit_softcapping", "final_logit_softcapping"));
  const bool largest = config.layers() == largest_models_layers;
  config.AddReal("query_pre_attn_scalar",
                 largest ? static_cast<double>(config.hidden_dim()) / config.heads()
                         : static_cast<double>(config.head_dim()));
  return absl::OkStatus();
}

absl::Status AddGemma2Gguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(AddGemmaGguf(config, 46));
  return config.CopyReal("attn_logit_softcapping", "attn_logit_softcapping");
}

absl::Status AddGemma3Gguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(AddGemmaGguf(config, 62));
  BATON_RETURN_IF_ERROR(config.CopyWindowPattern());
  return config.CopyReal("rope.freq_base_swa", "rope_local_base_freq");
}

}  // namespace

const Architecture kGemma2 = {
    .name = "Gemma2ForCausalLM",
    .model_type = "gemma2",
    .describe = DescribeGemma2,
    .gguf = "gemma2",
    .add_gguf = AddGemma2Gguf,
};
const Architecture kGemma3 = {
    .name = "Gemma3ForCausalLM",
    .model_type = "gemma3_text",
    .describe = DescribeGemma3,
    .gguf = "gemma3",
    .add_gguf = AddGemma3Gguf,
};

}  // namespace baton::model
