// Qwen3's models with experts, and its coder.
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

absl::StatusOr<ModelConfig> DescribeQwen3Moe(const JsonFields& config) {
  // The class takes the first from hidden_size, and 4 for the second, which no file need mean.
  for (const char* key : {"head_dim", "num_key_value_heads"}) {
    if (!config.Has(key)) return config.Invalid(key, "found nothing, expected an integer");
  }
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  AddQkNorms(/*all_heads=*/false, &model);
  BATON_ASSIGN_OR_RETURN(const bool slides, config.Bool("use_sliding_window", false));
  if (slides) return config.Unsupported("use_sliding_window", "found true, expected false");
  config.Ignore("sliding_window");
  BATON_RETURN_IF_ERROR(CheckLayerTypes(config, model));
  BATON_ASSIGN_OR_RETURN(const bool normalized, config.Bool("norm_topk_prob", false));
  BATON_ASSIGN_OR_RETURN(const int step, config.IntOr("decoder_sparse_step", 1, kMaxLayers, 1));
  BATON_ASSIGN_OR_RETURN(const std::vector<int> dense,
                         config.Ints("mlp_only_layers", 0, kMaxLayers));
  BATON_RETURN_IF_ERROR(AddExperts(
      config,
      {.ffn_key = "moe_intermediate_size",
       .router = {"mlp.gate", "ffn_gate_inp"},
       .gate = {"mlp.experts.*.gate_proj", "ffn_gate_exps.*"},
       .up = {"mlp.experts.*.up_proj", "ffn_up_exps.*"},
       .down = {"mlp.experts.*.down_proj", "ffn_down_exps.*"}},
      {.normalized = normalized},
      [&](int layer) { return (layer + 1) % step == 0 && !absl::c_linear_search(dense, layer); },
      &model));
  return model;
}

// llama.cpp normalises these weights, whatever the file says.
absl::Status AddQwen3MoeGguf(GgufConfig& config) {
  config.AddJson("norm_topk_prob", "true");
  return config.CopyExperts("num_experts", "moe_intermediate_size");
}

}  // namespace

const Architecture kQwen3Moe = {
    .name = "Qwen3MoeForCausalLM",
    .model_type = "qwen3_moe",
    .describe = DescribeQwen3Moe,
    .gguf = "qwen3moe",
    .gguf_experts = true,
    .add_gguf = AddQwen3MoeGguf,
};

}  // namespace baton::model
