// OLMoE: experts in all layers, and norms of all heads' queries and keys together.
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"

namespace baton::model {
namespace {

absl::StatusOr<ModelConfig> DescribeOlmoe(const JsonFields& config) {
  if (!config.IsNull("clip_qkv") && config.Has("clip_qkv")) {
    return config.Unsupported("clip_qkv", "found one, expected null");
  }
  config.Ignore("clip_qkv");
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  AddQkNorms(/*all_heads=*/true, &model);
  BATON_ASSIGN_OR_RETURN(const bool normalized, config.Bool("norm_topk_prob", false));
  BATON_RETURN_IF_ERROR(AddExperts(
      config,
      {.ffn_key = "intermediate_size",
       .router = {"mlp.gate", "ffn_gate_inp"},
       .gate = {"mlp.experts.*.gate_proj", "ffn_gate_exps.*"},
       .up = {"mlp.experts.*.up_proj", "ffn_up_exps.*"},
       .down = {"mlp.experts.*.down_proj", "ffn_down_exps.*"}},
      {.normalized = normalized}, [](int) { return true; }, &model));
  return model;
}

absl::Status AddOlmoeGguf(GgufConfig& config) { return config.CopyExperts("num_experts", ""); }

}  // namespace

const Architecture kOlmoe = {
    .name = "OlmoeForCausalLM",
    .model_type = "olmoe",
    .describe = DescribeOlmoe,
    .gguf = "olmoe",
    .gguf_experts = true,
    .add_gguf = AddOlmoeGguf,
};

}  // namespace baton::model
