// Seed-OSS: Llama with biases of q, k and v.
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"

namespace baton::model {
namespace {

absl::StatusOr<ModelConfig> DescribeSeedOss(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(
      ModelConfig model,
      ReadDense(config, {.head_dim = 128, .kv_heads = 8, .attention_bias = true}));
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  BATON_ASSIGN_OR_RETURN(const bool output_bias, config.Bool("attention_out_bias", false));
  for (LayerSpec& layer : model.layers) {
    layer.attention().output.bias = output_bias;
    // GGUF files call this norm as those of other architectures call one behind the attention.
    layer.mlp_sublayer().norm_before.name.gguf = "post_attention_norm";
  }
  return model;
}

}  // namespace

const Architecture kSeedOss = {
    .name = "SeedOssForCausalLM",
    .model_type = "seed_oss",
    .describe = DescribeSeedOss,
    .gguf = "seed_oss",
};

}  // namespace baton::model
