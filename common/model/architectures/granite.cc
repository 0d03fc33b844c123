// Granite 3 and 4: Llama with scales on the embedding, the scores, the sublayers and the logits.
// The hybrids have Mamba 2 in most layers, and may have experts beside an MLP that all tokens
// share.
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

constexpr double kLeast = 1e-6, kMost = 1e6;

// Nothing reads them in a model whose layers all have attention.
constexpr absl::string_view kMambaKeys[] = {
    "mamba_chunk_size", "mamba_conv_bias", "mamba_d_conv",  "mamba_d_head",    "mamba_d_state",
    "mamba_expand",     "mamba_n_groups",  "mamba_n_heads", "mamba_proj_bias", "time_step_limit",
};

absl::Status SetScales(const JsonFields& config, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const double embedding,
                         config.RealOr("embedding_multiplier", kLeast, kMost, 1));
  BATON_ASSIGN_OR_RETURN(const double attention,
                         config.RealOr("attention_multiplier", kLeast, kMost, 1));
  BATON_ASSIGN_OR_RETURN(const double residual,
                         config.RealOr("residual_multiplier", kLeast, kMost, 1));
  BATON_ASSIGN_OR_RETURN(const double logits, config.RealOr("logits_scaling", kLeast, kMost, 1));
  model->embedding_scale = static_cast<float>(embedding);
  model->logit_scale = static_cast<float>(1 / logits);
  for (LayerSpec& layer : model->layers) {
    layer.attention().scale = static_cast<float>(attention);
    for (SublayerSpec& sublayer : layer.sublayers)
      sublayer.residual_scale = static_cast<float>(residual);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> DescribeGranite(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  BATON_RETURN_IF_ERROR(SetScales(config, &model));
  return model;
}

// Without the text "rope" there is no rotation, and nothing reads its keys.
absl::Status SetHybridRope(const JsonFields& config, ModelConfig* model) {
  constexpr absl::string_view kKey = "position_embedding_type";
  BATON_ASSIGN_OR_RETURN(const auto type, config.OptionalString(kKey));
  if (type && *type == "rope") return SetRope(config, model);
  BATON_RETURN_IF_ERROR(ExpectText(config, kKey, "nope"));
  for (const char* key : {"rope_theta", "rope_scaling", "rope_parameters"}) config.Ignore(key);
  for (LayerSpec& layer : model->layers) layer.attention().rope = kNoRope;
  return absl::OkStatus();
}

absl::Status ReadMambaHeads(const JsonFields& config, int hidden_dim, RecurrentSpec* mamba) {
  BATON_ASSIGN_OR_RETURN(const int expand, config.IntOr("mamba_expand", 1, kMaxHeads, 2));
  BATON_ASSIGN_OR_RETURN(mamba->heads, config.IntOr("mamba_n_heads", 1, kMaxHeads, 128));
  BATON_ASSIGN_OR_RETURN(mamba->key_heads, config.IntOr("mamba_n_groups", 1, kMaxHeads, 1));
  const int64_t width = int64_t{expand} * hidden_dim;
  if (width % mamba->heads != 0 || mamba->heads % mamba->key_heads != 0) {
    return config.Invalid(
        "mamba_n_heads", absl::StrCat("found ", mamba->heads, ", expected a divisor of ", width,
                                      " and a multiple of ", mamba->key_heads, ", mamba_n_groups"));
  }
  const int64_t head_dim = width / mamba->heads;
  if (config.HasText("mamba_d_head")) {
    BATON_RETURN_IF_ERROR(ExpectText(config, "mamba_d_head", "auto"));
  } else {
    BATON_ASSIGN_OR_RETURN(const auto found, config.OptionalInt("mamba_d_head", 1, kMaxHidden));
    if (found.value_or(head_dim) != head_dim) {
      return config.Invalid("mamba_d_head",
                            absl::StrCat("found ", *found, ", expected ", head_dim));
    }
  }
  if (head_dim % backend::kStateLanes != 0 || head_dim > kMaxHidden) {
    return config.Unsupported("mamba_n_heads",
                              absl::StrCat("found ", mamba->heads, " of ", head_dim,
                                           ", expected a multiple of ", backend::kStateLanes));
  }
  mamba->head_dim = static_cast<int>(head_dim);
  BATON_ASSIGN_OR_RETURN(mamba->key_dim,
                         ReadMultiple(config, "mamba_d_state", 16, backend::kMostStateDepth, 256));
  return absl::OkStatus();
}

absl::StatusOr<RecurrentSpec> MambaOf(const JsonFields& config, const ModelConfig& model) {
  RecurrentSpec mamba;
  BATON_RETURN_IF_ERROR(ReadMambaHeads(config, model.hidden_dim, &mamba));
  BATON_ASSIGN_OR_RETURN(mamba.taps, config.IntOr("mamba_d_conv", 2, backend::kMostConvTaps, 4));
  BATON_ASSIGN_OR_RETURN(mamba.conv_bias, config.Bool("mamba_conv_bias", true));
  BATON_ASSIGN_OR_RETURN(const bool biased, config.Bool("mamba_proj_bias", false));
  BATON_ASSIGN_OR_RETURN(std::vector<double> limit, config.Reals("time_step_limit", 0, HUGE_VAL));
  if (limit.empty()) limit = {0, HUGE_VAL};
  if (limit.size() != 2 || limit[0] > limit[1]) {
    return config.Invalid("time_step_limit", "found other than two numbers in order");
  }
  mamba.least_step = static_cast<float>(limit[0]);
  mamba.most_step = static_cast<float>(limit[1]);
  SetStateSpace({.conv = "mamba.conv1d",
                 .in = "mamba.in_proj",
                 .decay = "mamba.A_log",
                 .step_bias = "mamba.dt_bias",
                 .skip = "mamba.D",
                 .norm = "mamba.norm",
                 .output = "mamba.out_proj"},
                biased, model, &mamba);
  return mamba;
}

// What the class calls the shared MLP is the only one of a model without experts.
absl::StatusOr<ModelConfig> DescribeGraniteHybrid(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(
      ModelConfig model,
      ReadDense(config, {.norm_eps = 1e-6, .ffn_key = "shared_intermediate_size"}));
  BATON_RETURN_IF_ERROR(ExpectText(config, "hidden_act", "silu"));  // of convolutions, too
  BATON_RETURN_IF_ERROR(ExpectText(config, "normalization_function", "rmsnorm"));
  BATON_RETURN_IF_ERROR(SetHybridRope(config, &model));
  BATON_RETURN_IF_ERROR(SetScales(config, &model));
  BATON_ASSIGN_OR_RETURN(const int experts, config.IntOr("num_local_experts", 0, kMaxExperts, 8));
  const MlpNames mlp = experts > 0 ? MlpNames{{"shared_mlp.input_linear", "ffn_gate_shexp"},
                                              {nullptr, "ffn_up_shexp"},
                                              {"shared_mlp.output_linear", "ffn_down_shexp"}}
                                   : MlpNames{{"shared_mlp.input_linear", "ffn_gate"},
                                              {nullptr, "ffn_up"},
                                              {"shared_mlp.output_linear", "ffn_down"}};
  for (LayerSpec& layer : model.layers) {
    layer.attention().output.bias = layer.attention().qkv.bias;
    SetMlp(layer.mlp().ffn_dim, mlp, &layer.mlp());
  }
  BATON_ASSIGN_OR_RETURN(
      const std::vector<bool> recurrent,
      ReadRecurrentLayers(config, model.layers.size(), kLinearAttention, [](int) { return true; }));
  if (absl::c_linear_search(recurrent, true)) {
    config.Ignore("mamba_chunk_size");
    BATON_ASSIGN_OR_RETURN(const RecurrentSpec mamba, MambaOf(config, model));
    for (size_t i = 0; i < model.layers.size(); ++i) {
      if (recurrent[i]) model.layers[i].attention_sublayer().body = mamba;
    }
  } else {
    for (const absl::string_view key : kMambaKeys) config.Ignore(key);
  }
  if (experts == 0) {
    for (const char* key : {"intermediate_size", "num_experts_per_tok"}) config.Ignore(key);
    return model;
  }
  const MlpSpec shared = model.layers[0].mlp();
  BATON_RETURN_IF_ERROR(AddExperts(
      config,
      {.ffn_key = "intermediate_size",
       .router = {"block_sparse_moe.router.layer", "ffn_gate_inp"},
       .gate = {"block_sparse_moe.experts.*.gate", "ffn_gate_exps.*"},
       .up = {"block_sparse_moe.experts.*.up", "ffn_up_exps.*"},
       .down = {"block_sparse_moe.experts.*.down", "ffn_down_exps.*"},
       .count_key = "num_local_experts"},
      // A softmax over the chosen ones alone.
      {.normalized = true}, [](int) { return true; }, &model));
  for (LayerSpec& layer : model.layers) {
    auto& spec = std::get<ExpertsSpec>(layer.sublayers[1].body);
    spec.shared = shared;
    spec.expert.gate_up.fused = {"block_sparse_moe.input_linear.weight", nullptr};
    spec.expert.down.fused = {"block_sparse_moe.output_linear.weight", nullptr};
    spec.expert.gate_up.fused_by_rows = spec.expert.down.fused_by_rows = true;
  }
  return model;
}

absl::Status AddGraniteGguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(config.CopyReal("embedding_scale", "embedding_multiplier"));
  // Without one, scores are scaled by the head's size, as in Llama.
  BATON_ASSIGN_OR_RETURN(const auto scale, config.Real("attention.scale"));
  const double by_size = 1 / std::sqrt(static_cast<double>(config.head_dim()));
  config.AddReal("attention_multiplier", scale.value_or(0) == 0 ? by_size : *scale);
  BATON_RETURN_IF_ERROR(config.CopyReal("residual_scale", "residual_multiplier"));
  return config.CopyReal("logit_scale", "logits_scaling");
}

// llama.cpp writes hybrids without a recurrent layer as such files, with keys that mean nothing.
absl::Status AddDenseGraniteGguf(GgufConfig& config) {
  for (const char* key : {"ssm.conv_kernel", "ssm.state_size", "ssm.group_count", "ssm.inner_size",
                          "ssm.time_step_rank"}) {
    BATON_RETURN_IF_ERROR(config.Integer(key).status());
  }
  constexpr absl::string_view kShared = "expert_shared_feed_forward_length";
  BATON_ASSIGN_OR_RETURN(const auto shared, config.Integer(kShared));
  if (shared.value_or(0) != 0 && *shared != config.ffn_dim()) {
    return config.Unsupported(kShared,
                              absl::StrCat("found ", *shared, ", expected ", config.ffn_dim(),
                                           ", as feed_forward_length says"));
  }
  return AddGraniteGguf(config);
}

absl::Status AddGraniteHybridGguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(AddGraniteGguf(config));
  // What llama.cpp takes this key for.
  BATON_ASSIGN_OR_RETURN(const bool rotates, config.BoolOr("rope.scaling.finetuned", true));
  config.AddJson("position_embedding_type", rotates ? "\"rope\"" : "\"nope\"");
  for (const auto& [key, field] : {std::pair("ssm.conv_kernel", "mamba_d_conv"),
                                   {"ssm.state_size", "mamba_d_state"},
                                   {"ssm.group_count", "mamba_n_groups"},
                                   {"ssm.time_step_rank", "mamba_n_heads"}}) {
    BATON_RETURN_IF_ERROR(config.CopyInteger(key, field));
  }
  BATON_ASSIGN_OR_RETURN(const auto width, config.Integer("ssm.inner_size"));
  const int64_t d = config.hidden_dim();
  if (!width) return config.Missing("ssm.inner_size", "an integer");
  if (d < 1 || *width % d != 0) {
    return config.Unsupported("ssm.inner_size",
                              absl::StrCat("found ", *width, ", expected a multiple of ", d));
  }
  config.AddJson("mamba_expand", absl::StrCat(*width / d));
  BATON_ASSIGN_OR_RETURN(const auto shared, config.Integer("expert_shared_feed_forward_length"));
  config.AddJson("shared_intermediate_size",
                 absl::StrCat(shared.value_or(0) != 0 ? *shared : config.ffn_dim()));
  if (config.has_experts()) return config.CopyExperts("num_local_experts", "");
  config.AddJson("num_local_experts", "0");
  return config.Integer("expert_used_count").status();  // of none
}

}  // namespace

const Architecture kGranite = {
    .name = "GraniteForCausalLM",
    .model_type = "granite",
    .describe = DescribeGranite,
    .gguf = "granite",
    .gguf_pairs_rows = true,
    .add_gguf = AddDenseGraniteGguf,
};

const Architecture kGraniteHybrid = {
    .name = "GraniteMoeHybridForCausalLM",
    .model_type = "granitemoehybrid",
    .describe = DescribeGraniteHybrid,
    .gguf = "granitehybrid",
    .gguf_pairs_rows = true,
    .gguf_experts = true,
    .gguf_recurrent = "linear_attention",
    .add_gguf = AddGraniteHybridGguf,
};

}  // namespace baton::model
