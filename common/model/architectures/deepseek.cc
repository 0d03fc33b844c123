// DeepSeek-V2 (Lite) and GLM-4.7-Flash: latent attention, and experts beside those that all tokens
// share.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

// As DeepSeek-V3 (arXiv 2412.19437, section 2.2) and GLM have it: the layer behind the last one is
// the head, with what is around it. Implementations for inference (vLLM, SGLang) pass on what the
// layer gives, without the head's norm.
void SetDeepSeekMtp(ModelConfig* model) {
  const int64_t d = model->hidden_dim;
  const auto norm = [d](const char* name) { return NormSpec{{name, nullptr}, d}; };
  MtpSpec mtp;
  mtp.prefix = mtp.layer_prefix = absl::StrCat("model.layers.", model->layers.size(), ".");
  mtp.embedding_copy = "embed_tokens";
  mtp.lm_head_copy = "shared_head.head";
  mtp.states_before_norm = true;
  mtp.embedding_norm = norm("enorm");
  mtp.hidden_norm = norm("hnorm");
  mtp.input = {.parts = {{{"eh_proj", nullptr}, d}}, .cols = 2 * d};
  mtp.layer = model->layers.back();
  mtp.final_norm = norm("shared_head.norm");
  model->mtp = std::make_shared<const MtpSpec>(std::move(mtp));
}

// Reads what both have. The layers for which `has_experts` have experts.
absl::StatusOr<ModelConfig> Describe(const JsonFields& config, const ClassDefaults& class_defaults,
                                     backend::ExpertRouting routing,
                                     absl::FunctionRef<bool(int layer)> has_experts) {
  BATON_ASSIGN_OR_RETURN(const ClassDefaults defaults, LatentDefaults(config, class_defaults));
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, defaults));
  BATON_RETURN_IF_ERROR(SetLatentAttention(config, &model));
  // Groups of experts, of which a token takes some.
  for (const char* key : {"n_group", "topk_group"}) BATON_RETURN_IF_ERROR(ExpectOne(config, key));
  // What only training reads.
  for (const char* key : {"aux_loss_alpha", "seq_aux", "ep_size"}) config.Ignore(key);
  // Layers behind the last one, for speculation.
  BATON_ASSIGN_OR_RETURN(const int heads,
                         config.IntOr("num_nextn_predict_layers", 0, kMaxLayers, 0));
  BATON_ASSIGN_OR_RETURN(const double scale, config.RealOr("routed_scaling_factor", 0, 1e6, 1));
  routing.scale = static_cast<float>(scale);
  BATON_RETURN_IF_ERROR(AddExperts(config,
                                   {.ffn_key = "moe_intermediate_size",
                                    .router = {"mlp.gate", "ffn_gate_inp"},
                                    .gate = {"mlp.experts.*.gate_proj", "ffn_gate_exps.*"},
                                    .up = {"mlp.experts.*.up_proj", "ffn_up_exps.*"},
                                    .down = {"mlp.experts.*.down_proj", "ffn_down_exps.*"},
                                    .count_key = "n_routed_experts"},
                                   routing, has_experts, &model));
  BATON_ASSIGN_OR_RETURN(const int shared, config.IntOr("n_shared_experts", 0, kMaxExperts, 0));
  for (LayerSpec& layer : model.layers) {
    auto* experts = std::get_if<ExpertsSpec>(&layer.sublayers[1].body);
    if (experts == nullptr) continue;
    if (routing.sigmoid) {
      experts->choice_bias = {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"};
    }
    if (shared == 0) continue;
    const int64_t ffn = int64_t{shared} * experts->expert.ffn_dim;
    if (ffn > kMaxFfn) {
      return config.Invalid("n_shared_experts",
                            absl::StrCat("found ", shared, " of ", experts->expert.ffn_dim,
                                         " rows, expected at most ", kMaxFfn, " rows in all"));
    }
    experts->shared = experts->expert;
    SetMlp(static_cast<int>(ffn),
           {{"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
            {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
            {"mlp.shared_experts.down_proj", "ffn_down_shexp"}},
           &experts->shared);
  }
  // The head has the shape of the last layer.
  if (heads > 0 && model.layers.back().has_experts()) SetDeepSeekMtp(&model);
  return model;
}

absl::StatusOr<ModelConfig> DescribeDeepseekV2(const JsonFields& config) {
  BATON_RETURN_IF_ERROR(ExpectText(config, "topk_method", "greedy"));
  BATON_RETURN_IF_ERROR(ExpectText(config, "scoring_func", "softmax"));
  BATON_RETURN_IF_ERROR(ExpectOne(config, "moe_layer_freq"));
  // The class in Transformers ignores it; the published code does not.
  BATON_ASSIGN_OR_RETURN(const bool normalized, config.Bool("norm_topk_prob", false));
  if (normalized) return config.Unsupported("norm_topk_prob", "found true, expected false");
  BATON_ASSIGN_OR_RETURN(const int dense, config.IntOr("first_k_dense_replace", 0, kMaxLayers, 0));
  for (const char* key : {"n_routed_experts", "n_shared_experts", "kv_lora_rank"}) {
    // Its class defaults are those of no published model.
    if (!config.Has(key)) return config.Invalid(key, "found nothing, expected an integer");
  }
  if (!config.Has("q_lora_rank") && !config.IsNull("q_lora_rank")) {  // its default is 1536
    return config.Invalid("q_lora_rank", "found nothing, expected an integer or null");
  }
  return Describe(config, {}, {}, [&](int layer) { return layer >= dense; });
}

absl::StatusOr<ModelConfig> DescribeGlm4MoeLite(const JsonFields& config) {
  BATON_RETURN_IF_ERROR(ExpectText(config, "topk_method", "noaux_tc"));
  BATON_RETURN_IF_ERROR(ExpectText(config, "scoring_func", "sigmoid"));
  BATON_ASSIGN_OR_RETURN(const bool pairs, config.Bool("rope_interleave", true));
  if (!pairs) return config.Unsupported("rope_interleave", "found false, expected true");
  backend::ExpertRouting routing;
  routing.sigmoid = true;
  BATON_ASSIGN_OR_RETURN(routing.normalized, config.Bool("norm_topk_prob", true));
  for (const char* key : {"n_routed_experts", "n_shared_experts", "kv_lora_rank", "q_lora_rank",
                          "routed_scaling_factor"}) {
    if (!config.Has(key) && !config.IsNull(key)) {
      return config.Invalid(key, "found nothing, expected a number");
    }
  }
  // Where a config has no list, the class in Transformers makes the first layer dense and no other,
  // whatever first_k_dense_replace says.
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("mlp_layer_types"));
  BATON_ASSIGN_OR_RETURN(const auto dense,
                         config.OptionalInt("first_k_dense_replace", 0, kMaxLayers));
  BATON_ASSIGN_OR_RETURN(const int layers, config.Int("num_hidden_layers", 1, kMaxLayers));
  if (!types.empty() && types.size() != static_cast<size_t>(layers)) {
    return config.Invalid("mlp_layer_types",
                          absl::StrCat("found ", types.size(), " entries, expected ", layers));
  }
  for (int layer = 0; layer < static_cast<int>(types.size()); ++layer) {
    const std::string& type = types[static_cast<size_t>(layer)];
    if (type != "dense" && type != "sparse") {
      return config.Unsupported(
          absl::StrCat("mlp_layer_types[", layer, "]"),
          absl::StrCat("found ", json::Quoted(type), ", expected dense or sparse"));
    }
  }
  const auto has_experts = [&](int layer) {
    return types.empty() ? layer > 0 : types[static_cast<size_t>(layer)] == "sparse";
  };
  for (int layer = 0; dense && layer < layers; ++layer) {
    if (has_experts(layer) == (layer >= *dense)) continue;
    return config.Unsupported("first_k_dense_replace",
                              absl::StrCat("found ", *dense, ", expected ",
                                           types.empty() ? "1" : "what mlp_layer_types says"));
  }
  return Describe(config, {.norm_eps = 1e-5}, routing, has_experts);
}

// Both have one name there, and their routers tell them apart.
absl::Status AddDeepseekGguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(config.CopyExperts("n_routed_experts", "moe_intermediate_size"));
  BATON_RETURN_IF_ERROR(config.CopyExpertGroups());
  BATON_ASSIGN_OR_RETURN(const auto dense, config.Integer("leading_dense_block_count"));
  BATON_ASSIGN_OR_RETURN(const bool sigmoid, config.RoutesBySigmoid());
  if (sigmoid) {
    std::vector<absl::string_view> types;
    for (int64_t layer = 0; layer < std::min<int64_t>(config.layers(), kMaxLayers); ++layer) {
      types.push_back(layer < dense.value_or(0) ? "\"dense\"" : "\"sparse\"");
    }
    config.SetArchitecture(kGlm4MoeLite.name);
    config.AddJson("mlp_layer_types", absl::StrCat("[", absl::StrJoin(types, ", "), "]"));
  } else {
    config.AddJson("first_k_dense_replace", absl::StrCat(dense.value_or(0)));
  }
  BATON_RETURN_IF_ERROR(config.CopyInteger("expert_shared_count", "n_shared_experts"));
  BATON_RETURN_IF_ERROR(config.CopyReal("expert_weights_scale", "routed_scaling_factor"));
  BATON_RETURN_IF_ERROR(config.CopyBool("expert_weights_norm", "norm_topk_prob", false));
  // The file has ten times less than mscale_all_dim, rounded to float32.
  BATON_ASSIGN_OR_RETURN(const auto multiplier, config.Real("rope.scaling.yarn_log_multiplier"));
  if (multiplier.value_or(0) != 0) {
    const double magnitude = std::round(*multiplier * 1e7) / 1e6;
    config.AddToRope("mscale", magnitude);
    config.AddToRope("mscale_all_dim", magnitude);
  }
  return absl::OkStatus();
}

}  // namespace

const Architecture kDeepseekV2 = {
    .name = "DeepseekV2ForCausalLM",
    .model_type = "deepseek_v2",
    .describe = DescribeDeepseekV2,
    .gguf = "deepseek2",
    .gguf_experts = true,
    .gguf_latent = true,
    .add_gguf = AddDeepseekGguf,
};

const Architecture kGlm4MoeLite = {
    .name = "Glm4MoeLiteForCausalLM",
    .model_type = "glm4_moe_lite",
    .describe = DescribeGlm4MoeLite,
};

}  // namespace baton::model
