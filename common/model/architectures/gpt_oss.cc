// gpt-oss 20B and 120B: experts whose gated products are clamped, biases everywhere, windows in
// every other layer, a sink for each head, and YaRN whose borders are not rounded.
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

constexpr ClassDefaults kGptOssDefaults = {
    .head_dim = 64,
    .kv_heads = 8,
    .attention_bias = true,
    .max_positions = 131072,
    .vocab_size = 201088,
    .query_heads = 64,
    .norm_eps = 1e-5,
};

absl::Status ExpectReal(const JsonFields& config, absl::string_view key, double expected) {
  BATON_ASSIGN_OR_RETURN(const double found, config.RealOr(key, 0, 1e6, expected));
  if (found == expected) return absl::OkStatus();
  return config.Unsupported(key, absl::StrCat("found ", found, ", expected ", expected));
}

absl::StatusOr<ModelConfig> DescribeGptOss(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, kGptOssDefaults));
  if (!config.Has("rope_parameters") && !config.Has("rope_scaling")) {
    // Its class default is YaRN, which no file need mean.
    return config.Invalid("rope_scaling", "found nothing, expected an object");
  }
  RopeRequest rope = RopeRequestOf(model);
  rope.default_theta = 150000;
  BATON_RETURN_IF_ERROR(SetRope(config, rope, &model));
  BATON_ASSIGN_OR_RETURN(const int window, config.IntOr("sliding_window", 1, kMaxPositions, 128));
  BATON_RETURN_IF_ERROR(SetWindows(
      config, window, [](int layer) { return layer % 2 == 0; }, &model));
  BATON_RETURN_IF_ERROR(ExpectReal(config, "swiglu_alpha", 1.702));
  BATON_RETURN_IF_ERROR(ExpectReal(config, "swiglu_limit", 7));
  // Other names for num_experts_per_tok and for YaRN's original length.
  for (const char* key : {"experts_per_token", "initial_context_length"}) config.Ignore(key);
  BATON_RETURN_IF_ERROR(AddExperts(
      config,
      {.ffn_key = "intermediate_size",
       .router = {"mlp.router", "ffn_gate_inp"},
       .gate = {"mlp.experts.*.gate_proj", "ffn_gate_exps.*"},
       .up = {"mlp.experts.*.up_proj", "ffn_up_exps.*"},
       .down = {"mlp.experts.*.down_proj", "ffn_down_exps.*"}},
      // A softmax over the chosen ones alone.
      {.normalized = true}, [](int) { return true; }, &model));
  for (LayerSpec& layer : model.layers) {
    AttentionSpec& attention = layer.attention();
    attention.output.bias = attention.qkv.bias;
    attention.sinks = {"self_attn.sinks", "attn_sinks"};
    SublayerSpec& sublayer = layer.sublayers[1];
    sublayer.norm_before.name = {"post_attention_layernorm", "post_attention_norm"};
    auto& experts = std::get<ExpertsSpec>(sublayer.body);
    experts.router.bias = true;
    MlpSpec& expert = experts.expert;
    expert.activation = backend::GatedActivation::kClampedSwiglu;
    expert.gate_up.bias = expert.down.bias = true;
    expert.gate_up.fused = {"mlp.experts.gate_up_proj", nullptr};
    expert.down.fused = {"mlp.experts.down_proj", nullptr};
  }
  return model;
}

// The files do not say that YaRN's borders are not rounded. The published model's are not;
// llama.cpp rounds them all the same, so its logits differ a little from those of transformers.
absl::Status AddGptOssGguf(GgufConfig& config) {
  BATON_ASSIGN_OR_RETURN(const bool slides, config.CopyWindow());
  if (!slides) config.AddJson("sliding_window", "0");  // which is refused
  config.AddToRope("truncate", false);
  return config.CopyExperts("num_local_experts", "");
}

}  // namespace

const Architecture kGptOss = {
    .name = "GptOssForCausalLM",
    .model_type = "gpt_oss",
    .describe = DescribeGptOss,
    .gguf = "gpt-oss",
    .gguf_experts = true,
    .add_gguf = AddGptOssGguf,
};

}  // namespace baton::model
