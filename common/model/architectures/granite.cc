// Granite 3 and 4, dense: Llama with scales on the embedding, the scores, the sublayers and the
// logits.
#include <cmath>

#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"

namespace baton::model {
namespace {

constexpr double kLeast = 1e-6, kMost = 1e6;

absl::StatusOr<ModelConfig> DescribeGranite(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  BATON_ASSIGN_OR_RETURN(const double embedding,
                         config.RealOr("embedding_multiplier", kLeast, kMost, 1));
  BATON_ASSIGN_OR_RETURN(const double attention,
                         config.RealOr("attention_multiplier", kLeast, kMost, 1));
  BATON_ASSIGN_OR_RETURN(const double residual,
                         config.RealOr("residual_multiplier", kLeast, kMost, 1));
  BATON_ASSIGN_OR_RETURN(const double logits, config.RealOr("logits_scaling", kLeast, kMost, 1));
  model.embedding_scale = static_cast<float>(embedding);
  model.logit_scale = static_cast<float>(1 / logits);
  for (LayerSpec& layer : model.layers) {
    layer.attention().scale = static_cast<float>(attention);
    for (SublayerSpec& sublayer : layer.sublayers)
      sublayer.residual_scale = static_cast<float>(residual);
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

}  // namespace

const Architecture kGranite = {
    .name = "GraniteForCausalLM",
    .model_type = "granite",
    .describe = DescribeGranite,
    .gguf = "granite",
    .gguf_pairs_rows = true,
    .add_gguf = AddGraniteGguf,
};

}  // namespace baton::model
