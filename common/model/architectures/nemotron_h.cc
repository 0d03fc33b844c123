// Nemotron-H: layers of one sublayer each, which is Mamba 2, attention without rotation, an MLP
// without a gate, or experts of such MLPs beside one that all tokens share.
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

// Keys of published configs that the class does not read: what only training reads, what names a
// way to compute, sizes that others give, rotation, and layers for speculation, which are left out
// with a line in the log.
constexpr absl::string_view kNemotronUnread[] = {
    "chunk_size",
    "expand",
    "mamba_ssm_cache_dtype",
    "moe_shared_expert_overlap",
    "mtp_hybrid_override_pattern",
    "mtp_layers_block_type",
    "norm_eps",
    "num_logits_to_keep",
    "num_nextn_predict_layers",
    "partial_rotary_factor",
    "rescale_prenorm_residual",
    "rope_parameters",
    "rope_theta",
    "time_step_floor",
    "time_step_max",
    "time_step_rank",
    "use_mamba_kernels",
};

// A layer's letter in hybrid_override_pattern, and its names in layers_block_type: since version 5
// of Transformers, and before.
struct NemotronLayer {
  char letter;
  absl::string_view name, old_name;
};
constexpr NemotronLayer kNemotronLayers[] = {{'M', "linear_attention", "mamba"},
                                             {'*', "full_attention", "attention"},
                                             {'-', "mlp", "mlp"},
                                             {'E', "moe", "moe"}};
constexpr absl::string_view kPatternKey = "hybrid_override_pattern";
constexpr absl::string_view kListKey = "layers_block_type";

const NemotronLayer* NemotronLayerOf(char letter) {
  for (const NemotronLayer& kind : kNemotronLayers) {
    if (kind.letter == letter) return &kind;
  }
  return nullptr;
}

// The letters of all layers.
absl::StatusOr<std::string> ReadPattern(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(const auto pattern, config.OptionalString(kPatternKey));
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> names, config.Strings(kListKey));
  for (size_t i = 0; pattern && i < pattern->size(); ++i) {
    if (NemotronLayerOf((*pattern)[i]) != nullptr) continue;
    return config.Unsupported(
        absl::StrCat(kPatternKey, "[", i, "]"),
        absl::StrCat("found ", json::Quoted(pattern->substr(i, 1)), ", expected M, *, - or E"));
  }
  std::string listed;
  for (size_t i = 0; i < names.size(); ++i) {
    for (const NemotronLayer& kind : kNemotronLayers) {
      if (names[i] == kind.name || names[i] == kind.old_name) listed.push_back(kind.letter);
    }
    if (listed.size() == i + 1) continue;
    return config.Unsupported(
        absl::StrCat(kListKey, "[", i, "]"),
        absl::StrCat("found ", json::Quoted(names[i]),
                     ", expected linear_attention, full_attention, mlp or moe"));
  }
  if (pattern && !listed.empty() && *pattern != listed) {
    return config.Invalid(kPatternKey, absl::StrCat("found ", json::Quoted(*pattern), ", expected ",
                                                    listed, ", as ", kListKey, " says"));
  }
  if (listed.empty() && pattern) listed = *pattern;
  if (listed.empty() || listed.size() > size_t{kMaxLayers}) {
    return config.Invalid(
        kPatternKey, absl::StrCat("found ", listed.size(), " layers, expected 1 to ", kMaxLayers));
  }
  return listed;
}

absl::StatusOr<RecurrentSpec> NemotronMamba(const JsonFields& config, const ModelConfig& model) {
  RecurrentSpec mamba;
  BATON_RETURN_IF_ERROR(ExpectText(config, "mamba_hidden_act", "silu"));
  BATON_ASSIGN_OR_RETURN(mamba.heads, config.IntOr("mamba_num_heads", 1, kMaxHeads, 128));
  BATON_ASSIGN_OR_RETURN(mamba.key_heads, config.IntOr("n_groups", 1, kMaxHeads, 8));
  if (mamba.heads % mamba.key_heads != 0) {
    return config.Invalid("mamba_num_heads",
                          absl::StrCat("found ", mamba.heads, ", expected a multiple of ",
                                       mamba.key_heads, ", n_groups"));
  }
  BATON_ASSIGN_OR_RETURN(mamba.head_dim, ReadMultiple(config, "mamba_head_dim",
                                                      backend::kStateLanes, kLargestHeadDim, 64));
  BATON_ASSIGN_OR_RETURN(mamba.key_dim,
                         ReadMultiple(config, "ssm_state_size", 16, backend::kMostStateDepth, 128));
  BATON_ASSIGN_OR_RETURN(mamba.taps, config.IntOr("conv_kernel", 2, backend::kMostConvTaps, 4));
  BATON_ASSIGN_OR_RETURN(mamba.conv_bias, config.Bool("use_conv_bias", true));
  BATON_ASSIGN_OR_RETURN(const bool biased, config.Bool("use_bias", false));
  // The class in Transformers has steps of at least time_step_min in prompts, whatever
  // time_step_limit says, and of any length in answers. A token must not depend on which step
  // computes it: here all have the least.
  BATON_ASSIGN_OR_RETURN(const double least, config.RealOr("time_step_min", 0, 1e6, 0.001));
  BATON_ASSIGN_OR_RETURN(const auto limit, config.Reals("time_step_limit", 0, HUGE_VAL));
  if (!limit.empty() && limit != std::vector<double>{0, HUGE_VAL}) {
    return config.Unsupported(
        "time_step_limit",
        absl::StrCat("found ", absl::StrJoin(limit, " to "), ", expected 0 to Infinity"));
  }
  mamba.least_step = static_cast<float>(least);
  mamba.most_step = HUGE_VALF;
  SetStateSpace({.conv = "mixer.conv1d",
                 .in = "mixer.in_proj",
                 .decay = "mixer.A_log",
                 .step_bias = "mixer.dt_bias",
                 .skip = "mixer.D",
                 .norm = "mixer.norm",
                 .output = "mixer.out_proj"},
                biased, model, &mamba);
  return mamba;
}

absl::Status AddNemotronExperts(const JsonFields& config, const std::string& pattern,
                                ModelConfig* model) {
  // Matrices to and from latents around the experts.
  if (config.Has("moe_latent_size")) {
    return config.Unsupported("moe_latent_size",
                              absl::StrCat("found ", config.Found("moe_latent_size"),
                                           ", expected null: experts of latents "
                                           "are not served"));
  }
  for (const char* key : {"n_group", "topk_group", "n_shared_experts"}) {
    BATON_RETURN_IF_ERROR(ExpectOne(config, key));
  }
  BATON_ASSIGN_OR_RETURN(const double scale, config.RealOr("routed_scaling_factor", 0, 1e6, 1));
  BATON_ASSIGN_OR_RETURN(const bool normalized, config.Bool("norm_topk_prob", true));
  BATON_ASSIGN_OR_RETURN(const int shared,
                         config.IntOr("moe_shared_expert_intermediate_size", 1, kMaxFfn, 7688));
  BATON_RETURN_IF_ERROR(AddExperts(
      config,
      {.ffn_key = "moe_intermediate_size",
       .router = {"mixer.gate", "ffn_gate_inp"},
       .gate = {},
       .up = {"mixer.experts.*.up_proj", "ffn_up_exps.*"},
       .down = {"mixer.experts.*.down_proj", "ffn_down_exps.*"},
       .count_key = "n_routed_experts"},
      {.normalized = normalized, .sigmoid = true, .scale = static_cast<float>(scale)},
      [&](int layer) { return pattern[static_cast<size_t>(layer)] == 'E'; }, model));
  for (LayerSpec& layer : model->layers) {
    if (!layer.has_experts()) continue;
    auto& experts = std::get<ExpertsSpec>(SublayerOf<ExpertsSpec>(layer).body);
    experts.choice_bias = {"mixer.gate.e_score_correction_bias", "exp_probs_b.bias"};
    experts.shared = experts.expert;
    SetMlp(shared,
           {{},
            {"mixer.shared_experts.up_proj", "ffn_up_shexp"},
            {"mixer.shared_experts.down_proj", "ffn_down_shexp"}},
           &experts.shared);
    experts.expert.gate_up.fused = {"mixer.experts.up_proj", nullptr};
    experts.expert.down.fused = {"mixer.experts.down_proj", nullptr};
    experts.expert.gate_up.fused_by_rows = experts.expert.down.fused_by_rows = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> DescribeNemotronH(const JsonFields& config) {
  for (const absl::string_view key : kNemotronUnread) config.Ignore(key);
  BATON_ASSIGN_OR_RETURN(const std::string pattern, ReadPattern(config));
  BATON_ASSIGN_OR_RETURN(const double eps, config.RealOr("layer_norm_epsilon", 1e-20, 1, 1e-5));
  const int layers = static_cast<int>(pattern.size());
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {.head_dim = 128,
                                                               .kv_heads = 8,
                                                               .max_positions = 4096,
                                                               .vocab_size = 131072,
                                                               .query_heads = 32,
                                                               .norm_eps = eps,
                                                               .layers = layers,
                                                               .ffn_dim = 21504,
                                                               .activation_key = "mlp_hidden_act",
                                                               .activation = kSquaredRelu}));
  model.norm_eps = static_cast<float>(eps);  // whatever rms_norm_eps says
  if (model.layers.size() != pattern.size()) {
    return config.Invalid("num_hidden_layers",
                          absl::StrCat("found ", model.layers.size(), ", expected ", layers,
                                       ", as ", kPatternKey, " or ", kListKey, " says"));
  }
  if (model.layers[0].attention().qkv.bias) {
    return config.Unsupported("attention_bias", "found true, expected false");
  }
  // The first configs call it so; the class reads head_dim alone.
  const int head_dim = model.layers[0].attention().head_dim;
  BATON_ASSIGN_OR_RETURN(const int old_head_dim,
                         config.IntOr("attention_head_dim", 1, kLargestHeadDim, head_dim));
  if (old_head_dim != head_dim) {
    return config.Unsupported(
        "attention_head_dim",
        absl::StrCat("found ", old_head_dim, ", expected ", head_dim, ", as head_dim"));
  }
  model.embedding_module = "embeddings";
  model.other_prefix = "backbone.";
  model.final_norm.name = {"norm_f", "output_norm"};
  BATON_ASSIGN_OR_RETURN(const RecurrentSpec mamba, NemotronMamba(config, model));
  if (absl::StrContains(pattern, 'E')) {
    BATON_RETURN_IF_ERROR(AddNemotronExperts(config, pattern, &model));
  } else {
    for (const char* key :
         {"moe_intermediate_size", "moe_shared_expert_intermediate_size", "moe_latent_size",
          "n_routed_experts", "n_shared_experts", "n_group", "topk_group", "num_experts_per_tok",
          "norm_topk_prob", "routed_scaling_factor"}) {
      config.Ignore(key);
    }
  }
  for (size_t i = 0; i < model.layers.size(); ++i) {
    std::vector<SublayerSpec>& sublayers = model.layers[i].sublayers;
    const bool mixes = pattern[i] == 'M' || pattern[i] == '*';
    sublayers.erase(sublayers.begin() + (mixes ? 1 : 0));
    SublayerSpec& sublayer = sublayers.front();
    sublayer.norm_before.name = {"norm", "attn_norm"};
    if (pattern[i] == 'M') sublayer.body = mamba;
    if (auto* attention = std::get_if<AttentionSpec>(&sublayer.body)) {
      attention->rope = kNoRope;
      constexpr TensorName kNames[] = {
          {"mixer.q_proj", "attn_q"}, {"mixer.k_proj", "attn_k"}, {"mixer.v_proj", "attn_v"}};
      for (size_t part = 0; part < 3; ++part) attention->qkv.parts[part].name = kNames[part];
      attention->output.parts[0].name = {"mixer.o_proj", "attn_output"};
    } else if (auto* mlp = std::get_if<MlpSpec>(&sublayer.body)) {
      SetMlp(mlp->ffn_dim, {{}, {"mixer.up_proj", "ffn_up"}, {"mixer.down_proj", "ffn_down"}}, mlp);
    }
  }
  return model;
}

// A layer with KV heads has attention, one with a feed-forward an MLP or, in files with experts,
// experts; Mamba has neither.
absl::Status AddNemotronGguf(GgufConfig& config) {
  constexpr absl::string_view kKvHeads = "attention.head_count_kv";
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> kv_heads, config.ByLayer(kKvHeads));
  BATON_ASSIGN_OR_RETURN(const std::vector<int64_t> ffn, config.ByLayer("feed_forward_length"));
  std::string pattern;
  for (size_t i = 0; i < kv_heads.size(); ++i) {
    if (kv_heads[i] != 0 && ffn[i] != 0) {
      return config.Unsupported(
          kKvHeads, absl::StrCat("found ", kv_heads[i], " of layer ", i,
                                 " beside a feed-forward of ", ffn[i], ", expected one of both"));
    }
    pattern.push_back(kv_heads[i] != 0       ? '*'
                      : ffn[i] == 0          ? 'M'
                      : config.has_experts() ? 'E'
                                             : '-');
  }
  config.AddJson(kPatternKey, json::Quoted(pattern));
  BATON_RETURN_IF_ERROR(config.CopyReal("attention.layer_norm_rms_epsilon", "layer_norm_epsilon"));
  BATON_RETURN_IF_ERROR(config.Real("attention.layer_norm_epsilon").status());  // of no norm here
  for (const auto& [key, field] : {std::pair("ssm.conv_kernel", "conv_kernel"),
                                   {"ssm.state_size", "ssm_state_size"},
                                   {"ssm.group_count", "n_groups"},
                                   {"ssm.time_step_rank", "mamba_num_heads"}}) {
    BATON_RETURN_IF_ERROR(config.CopyInteger(key, field));
  }
  BATON_ASSIGN_OR_RETURN(const auto width, config.Integer("ssm.inner_size"));
  BATON_ASSIGN_OR_RETURN(const auto heads, config.Integer("ssm.time_step_rank"));
  if (!width || !heads) {
    return config.Missing(width ? "ssm.time_step_rank" : "ssm.inner_size", "an integer");
  }
  if (*heads < 1 || *width % *heads != 0) {
    return config.Unsupported("ssm.inner_size",
                              absl::StrCat("found ", *width, ", expected a multiple of ", *heads,
                                           ", ssm.time_step_rank"));
  }
  config.AddJson("mamba_head_dim", absl::StrCat(*width / *heads));
  if (!config.has_experts()) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(config.CopyExperts("n_routed_experts", "moe_intermediate_size"));
  for (const auto& [key, field] :
       {std::pair("expert_group_count", "n_group"),
        {"expert_group_used_count", "topk_group"},
        {"expert_shared_count", "n_shared_experts"},
        {"expert_shared_feed_forward_length", "moe_shared_expert_intermediate_size"},
        {"moe_latent_size", "moe_latent_size"}}) {
    BATON_ASSIGN_OR_RETURN(const auto found, config.Integer(key));
    if (found.value_or(0) != 0) config.AddJson(field, absl::StrCat(*found));
  }
  BATON_RETURN_IF_ERROR(config.CopyReal("expert_weights_scale", "routed_scaling_factor"));
  BATON_RETURN_IF_ERROR(config.CopyBool("expert_weights_norm", "norm_topk_prob", false));
  BATON_ASSIGN_OR_RETURN(const bool sigmoid, config.RoutesBySigmoid());
  if (sigmoid) return absl::OkStatus();
  return config.Unsupported("expert_gating_func", "found a softmax, expected a sigmoid");
}

}  // namespace

const Architecture kNemotronH = {
    .name = "NemotronHForCausalLM",
    .model_type = "nemotron_h",
    .describe = DescribeNemotronH,
    .gguf = "nemotron_h",
    .gguf_with_experts = "nemotron_h_moe",
    .gguf_partial_rotary = true,
    .gguf_experts = true,
    .gguf_sublayers = true,
    .add_gguf = AddNemotronGguf,
};

}  // namespace baton::model
