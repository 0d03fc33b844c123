// Mixtral 8x7B and 8x22B: Mistral with experts.
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

absl::StatusOr<ModelConfig> DescribeMixtral(const JsonFields& config) {
  if (!config.Has("num_key_value_heads")) {  // its class default is 8, which no file need mean
    return config.Invalid("num_key_value_heads", "found nothing, expected an integer");
  }
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  RopeRequest rope = RopeRequestOf(model);
  rope.default_theta = 1e6;
  BATON_RETURN_IF_ERROR(SetRope(config, rope, &model));
  BATON_ASSIGN_OR_RETURN(const int window, config.IntOr("sliding_window", 1, kMaxPositions, 0));
  for (LayerSpec& layer : model.layers) layer.attention().window = window;
  // w1 is the gate, w3 up.
  BATON_RETURN_IF_ERROR(AddExperts(
      config,
      {.ffn_key = "intermediate_size",
       .router = {"block_sparse_moe.gate", "ffn_gate_inp"},
       .gate = {"block_sparse_moe.experts.*.w1", "ffn_gate_exps.*"},
       .up = {"block_sparse_moe.experts.*.w3", "ffn_up_exps.*"},
       .down = {"block_sparse_moe.experts.*.w2", "ffn_down_exps.*"}},
      {.normalized = true}, [](int) { return true; }, &model));
  return model;
}

}  // namespace

// Its GGUF files are Llama's with experts.
const Architecture kMixtral = {
    .name = "MixtralForCausalLM",
    .model_type = "mixtral",
    .describe = DescribeMixtral,
};

}  // namespace baton::model
