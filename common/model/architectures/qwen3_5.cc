// Qwen3.5: the gated delta rule in three layers of four, attention with gates in the fourth; and
// the same with experts, which Qwen3-Next has, too.
#include <cstdint>
#include <memory>
#include <utility>
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

constexpr absl::string_view kExpertFfnKey = "moe_intermediate_size";
// Written for GGUF files alone: value heads take key heads in turn; the delta rule's matrices are
// apart, as Qwen3.5's are.
constexpr absl::string_view kKeysInTurn = "linear_key_heads_in_turn";
constexpr absl::string_view kMatricesApart = "linear_matrices_apart";

absl::StatusOr<RecurrentSpec> DeltaOf(const JsonFields& config, const ModelConfig& model) {
  RecurrentSpec delta;
  delta.kind = RecurrentSpec::Kind::kGatedDelta;
  BATON_ASSIGN_OR_RETURN(delta.taps,
                         config.IntOr("linear_conv_kernel_dim", 2, backend::kMostConvTaps, 4));
  BATON_ASSIGN_OR_RETURN(delta.heads, config.IntOr("linear_num_value_heads", 1, kMaxHeads, 32));
  BATON_ASSIGN_OR_RETURN(delta.key_heads, config.IntOr("linear_num_key_heads", 1, kMaxHeads, 16));
  if (delta.heads % delta.key_heads != 0) {
    return config.Invalid("linear_num_key_heads",
                          absl::StrCat("found ", delta.key_heads, ", expected a divisor of ",
                                       delta.heads, ", linear_num_value_heads"));
  }
  BATON_ASSIGN_OR_RETURN(delta.head_dim, ReadMultiple(config, "linear_value_head_dim",
                                                      backend::kStateLanes, kLargestHeadDim, 128));
  BATON_ASSIGN_OR_RETURN(delta.key_dim, ReadMultiple(config, "linear_key_head_dim", 16,
                                                     backend::kMostStateDepth, 128));
  BATON_ASSIGN_OR_RETURN(delta.keys_in_turn, config.Bool(kKeysInTurn, false));
  const int64_t d = model.hidden_dim;
  delta.in = {.parts = {{{"linear_attn.in_proj_qkv", "attn_qkv"}, delta.conv_width()},
                        {{"linear_attn.in_proj_z", "attn_gate"}, delta.width()}},
              .cols = d};
  // What decides how much of a state stays is not rounded.
  delta.steps = {.parts = {{{"linear_attn.in_proj_b", "ssm_beta"}, delta.heads},
                           {{"linear_attn.in_proj_a", "ssm_alpha"}, delta.heads}},
                 .cols = d,
                 .rounds = false};
  delta.conv = {"linear_attn.conv1d", "ssm_conv1d"};
  delta.decay = {"linear_attn.A_log", "ssm_a"};
  delta.step_bias = {"linear_attn.dt_bias", "ssm_dt.bias"};
  delta.norm = {{"linear_attn.norm", "ssm_norm"}, delta.head_dim};
  delta.norm_group = delta.head_dim;
  delta.norm_eps = model.norm_eps;
  delta.output = {.parts = {{{"linear_attn.out_proj", "ssm_out"}, d}}, .cols = delta.width()};
  return delta;
}

// Norms are stored less one, but for the delta rule's own.
void SetGatedAttention(LayerSpec& layer) {
  AttentionSpec& attention = layer.attention();
  attention.gated = true;
  attention.qkv.parts[0].rows *= 2;
  attention.q_norm = {{"self_attn.q_norm", "attn_q_norm"}, attention.head_dim, true};
  attention.k_norm = {{"self_attn.k_norm", "attn_k_norm"}, attention.head_dim, true};
}

// The layer behind the last one is the MTP head's, until SetMtp takes it away: it has what the
// others have. True if the checkpoint has a head.
absl::StatusOr<bool> AddMtpLayer(const JsonFields& config, int layers_by_default,
                                 ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const int layers,
                         config.IntOr("mtp_num_hidden_layers", 0, kMaxLayers, layers_by_default));
  BATON_ASSIGN_OR_RETURN(const bool dedicated, config.Bool("mtp_use_dedicated_embeddings", false));
  if (layers == 0 || dedicated) return false;
  model->layers.push_back(model->layers.back());
  return true;
}

void SetQwenMtp(ModelConfig* model) {
  const int64_t d = model->hidden_dim;
  const auto norm = [d](const char* name) { return NormSpec{{name, nullptr}, d, true}; };
  MtpSpec mtp;
  mtp.prefix = "mtp.";
  mtp.layer_prefix = "mtp.layers.0.";
  mtp.embedding_norm = norm("pre_fc_norm_embedding");
  mtp.hidden_norm = norm("pre_fc_norm_hidden");
  mtp.input = {.parts = {{{"fc", nullptr}, d}}, .cols = 2 * d};
  mtp.layer = std::move(model->layers.back());
  mtp.final_norm = norm("norm");
  model->layers.pop_back();
  model->mtp = std::make_shared<const MtpSpec>(std::move(mtp));
}

// Reads what both have.
absl::StatusOr<ModelConfig> Describe(const JsonFields& config, const ClassDefaults& defaults,
                                     int mtp_by_default, bool* has_mtp) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, defaults));
  if (model.layers[0].attention().qkv.bias) {
    return config.Unsupported("attention_bias", "found true, expected false");
  }
  RopeRequest rope = RopeRequestOf(model);
  rope.partial = true;
  rope.default_share = 0.25;
  rope.mrope = true;
  BATON_RETURN_IF_ERROR(SetRope(config, rope, &model));
  BATON_ASSIGN_OR_RETURN(const int interval,
                         config.IntOr("full_attention_interval", 1, kMaxLayers, 4));
  BATON_ASSIGN_OR_RETURN(const std::vector<bool> recurrent,
                         ReadRecurrentLayers(config, model.layers.size(), kLinearAttention,
                                             [&](int i) { return (i + 1) % interval != 0; }));
  BATON_ASSIGN_OR_RETURN(const RecurrentSpec delta, DeltaOf(config, model));
  config.Ignore("mamba_ssm_dtype");
  BATON_ASSIGN_OR_RETURN(const bool gated, config.Bool("attn_output_gate", true));
  if (!gated) return config.Unsupported("attn_output_gate", "found false, expected true");
  model.final_norm.less_one = true;
  const size_t layers = model.layers.size();
  BATON_ASSIGN_OR_RETURN(*has_mtp, AddMtpLayer(config, mtp_by_default, &model));
  for (size_t i = 0; i < model.layers.size(); ++i) {
    LayerSpec& layer = model.layers[i];
    for (SublayerSpec& sublayer : layer.sublayers) sublayer.norm_before.less_one = true;
    layer.mlp_sublayer().norm_before.name.gguf = "post_attention_norm";
    SetGatedAttention(layer);
    if (i < layers && recurrent[i]) layer.attention_sublayer().body = delta;
  }
  return model;
}

absl::StatusOr<ModelConfig> DescribeQwen35(const JsonFields& config) {
  bool has_mtp = false;
  BATON_ASSIGN_OR_RETURN(
      ModelConfig model,
      Describe(config, {.head_dim = 256, .kv_heads = 4, .norm_eps = 1e-6}, 0, &has_mtp));
  if (has_mtp) SetQwenMtp(&model);
  return model;
}

// Experts, beside one that all tokens share, in the layers for which `has_experts`.
absl::Status AddSharedExperts(const JsonFields& config, bool normalized,
                              absl::FunctionRef<bool(int layer)> has_experts, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const int shared,
                         config.IntOr("shared_expert_intermediate_size", 1, kMaxFfn, 512));
  BATON_RETURN_IF_ERROR(AddExperts(config,
                                   {.ffn_key = kExpertFfnKey,
                                    .router = {"mlp.gate", "ffn_gate_inp"},
                                    .gate = {"mlp.experts.*.gate_proj", "ffn_gate_exps.*"},
                                    .up = {"mlp.experts.*.up_proj", "ffn_up_exps.*"},
                                    .down = {"mlp.experts.*.down_proj", "ffn_down_exps.*"}},
                                   {.normalized = normalized}, has_experts, model));
  for (LayerSpec& layer : model->layers) {
    if (!layer.has_experts()) continue;
    auto& experts = std::get<ExpertsSpec>(layer.sublayers[1].body);
    experts.shared = experts.expert;
    SetMlp(shared,
           {{"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
            {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
            {"mlp.shared_expert.down_proj", "ffn_down_shexp"}},
           &experts.shared);
    // One row, which decides how much of all that they share counts, is not rounded.
    experts.shared_gate = {.parts = {{{"mlp.shared_expert_gate", "ffn_gate_inp_shexp"}, 1}},
                           .cols = model->hidden_dim,
                           .rounds = false};
    experts.expert.gate_up.fused = {"mlp.experts.gate_up_proj", nullptr};
    experts.expert.down.fused = {"mlp.experts.down_proj", nullptr};
    experts.expert.gate_up.fused_by_rows = experts.expert.down.fused_by_rows = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> DescribeQwen35Moe(const JsonFields& config) {
  bool has_mtp = false;
  BATON_ASSIGN_OR_RETURN(
      ModelConfig model,
      Describe(config, {.head_dim = 256, .kv_heads = 2, .norm_eps = 1e-6, .ffn_key = kExpertFfnKey},
               0, &has_mtp));
  // The class has neither these nor layers without experts.
  config.Ignore("intermediate_size");
  BATON_RETURN_IF_ERROR(config.IntOr("decoder_sparse_step", 1, 1, 1).status());
  BATON_ASSIGN_OR_RETURN(const bool normalized, config.Bool("norm_topk_prob", true));
  if (!normalized) return config.Unsupported("norm_topk_prob", "found false, expected true");
  BATON_RETURN_IF_ERROR(AddSharedExperts(
      config, normalized, [](int) { return true; }, &model));
  if (has_mtp) SetQwenMtp(&model);
  return model;
}

// Published checkpoints have a head of which the config says nothing.
absl::StatusOr<ModelConfig> DescribeQwen3Next(const JsonFields& config) {
  bool has_mtp = false;
  BATON_ASSIGN_OR_RETURN(
      ModelConfig model,
      Describe(config, {.head_dim = 256, .kv_heads = 2, .norm_eps = 1e-6}, 1, &has_mtp));
  BATON_ASSIGN_OR_RETURN(const bool apart, config.Bool(kMatricesApart, false));
  for (LayerSpec& layer : model.layers) {
    auto* delta = std::get_if<RecurrentSpec>(&layer.sublayers[0].body);
    if (delta == nullptr) continue;
    // For each head of keys: its query and key, its values and their gates; and b, then a.
    const int64_t values = delta->heads / delta->key_heads;
    if (!apart) {
      delta->in.parts = {{{"linear_attn.in_proj_qkvz", "ssm_in"}, delta->in.rows()}};
      delta->in.turns = {delta->key_dim, delta->key_dim, values * delta->head_dim,
                         values * delta->head_dim};
    }
    delta->steps.parts = {{{"linear_attn.in_proj_ba", "ssm_ba"}, delta->steps.rows()}};
    delta->steps.turns = {values, values};
  }
  BATON_ASSIGN_OR_RETURN(const bool normalized, config.Bool("norm_topk_prob", true));
  BATON_ASSIGN_OR_RETURN(const int step, config.IntOr("decoder_sparse_step", 1, kMaxLayers, 1));
  BATON_ASSIGN_OR_RETURN(const std::vector<int> dense,
                         config.Ints("mlp_only_layers", 0, kMaxLayers));
  BATON_RETURN_IF_ERROR(AddSharedExperts(
      config, normalized,
      [&](int layer) {
        const bool head = has_mtp && layer + 1 == static_cast<int>(model.layers.size());
        return head || ((layer + 1) % step == 0 && !absl::c_linear_search(dense, layer));
      },
      &model));
  if (has_mtp) SetQwenMtp(&model);
  return model;
}

// What all say of the delta rule.
absl::Status AddDeltaGguf(GgufConfig& config) {
  for (const auto& [key, field] : {std::pair("ssm.conv_kernel", "linear_conv_kernel_dim"),
                                   {"ssm.group_count", "linear_num_key_heads"},
                                   {"ssm.time_step_rank", "linear_num_value_heads"},
                                   {"ssm.state_size", "linear_key_head_dim"}}) {
    BATON_RETURN_IF_ERROR(config.CopyInteger(key, field));
  }
  BATON_ASSIGN_OR_RETURN(const auto width, config.Integer("ssm.inner_size"));
  BATON_ASSIGN_OR_RETURN(const auto heads, config.Integer("ssm.time_step_rank"));
  if (!width) return config.Missing("ssm.inner_size", "an integer");
  if (heads.value_or(0) < 1 || *width % *heads != 0) {
    return config.Unsupported("ssm.inner_size",
                              absl::StrCat("found ", *width, ", expected a multiple of ",
                                           heads.value_or(0), ", the heads of ssm.time_step_rank"));
  }
  config.AddJson("linear_value_head_dim", absl::StrCat(*width / *heads));
  return config.CopyRecurrentLayers(kLinearAttention);
}

absl::Status AddExpertsGguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(config.CopyExperts("num_experts", kExpertFfnKey));
  BATON_RETURN_IF_ERROR(
      config.CopyInteger("expert_shared_feed_forward_length", "shared_expert_intermediate_size"));
  BATON_ASSIGN_OR_RETURN(const bool sigmoid, config.RoutesBySigmoid());
  if (!sigmoid) return absl::OkStatus();
  return config.Unsupported("expert_gating_func", "found a sigmoid, expected a softmax");
}

absl::Status AddQwen35Gguf(GgufConfig& config) {
  config.AddJson(kKeysInTurn, "true");
  BATON_RETURN_IF_ERROR(config.CheckRopeSections());
  return AddDeltaGguf(config);
}

absl::Status AddQwen35MoeGguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(AddQwen35Gguf(config));
  return AddExpertsGguf(config);
}

absl::Status AddQwen3NextGguf(GgufConfig& config) {
  config.AddJson(kMatricesApart, config.HasTensor(".ssm_in.weight") ? "false" : "true");
  BATON_RETURN_IF_ERROR(AddDeltaGguf(config));
  return AddExpertsGguf(config);
}

}  // namespace

const Architecture kQwen35 = {
    .name = "Qwen3_5ForCausalLM",
    .model_type = "qwen3_5_text",
    .describe = DescribeQwen35,
    .gguf = "qwen35",
    .gguf_partial_rotary = true,
    .gguf_drafts = true,
    .add_gguf = AddQwen35Gguf,
};
const Architecture kQwen3Next = {
    .name = "Qwen3NextForCausalLM",
    .model_type = "qwen3_next",
    .describe = DescribeQwen3Next,
    .gguf = "qwen3next",
    .gguf_partial_rotary = true,
    .gguf_drafts = true,
    .gguf_experts = true,
    .add_gguf = AddQwen3NextGguf,
};
const Architecture kQwen35Moe = {
    .name = "Qwen3_5MoeForCausalLM",
    .model_type = "qwen3_5_moe_text",
    .describe = DescribeQwen35Moe,
    .gguf = "qwen35moe",
    .gguf_partial_rotary = true,
    .gguf_drafts = true,
    .gguf_experts = true,
    .add_gguf = AddQwen35MoeGguf,
};

}  // namespace baton::model
