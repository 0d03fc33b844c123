// Mistral 7B and Small, and Ministral 3.
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

constexpr int kMistralWindow = 4096;  // of MistralConfig, where the key is missing

absl::StatusOr<ModelConfig> DescribeMistral(const JsonFields& config) {
  if (!config.Has("num_key_value_heads")) {  // its class default is 8, which no file need mean
    return config.Invalid("num_key_value_heads", "found nothing, expected an integer");
  }
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  BATON_ASSIGN_OR_RETURN(const auto window, config.OptionalInt("sliding_window", 1, kMaxPositions));
  const int if_absent = config.IsNull("sliding_window") ? 0 : kMistralWindow;
  for (LayerSpec& layer : model.layers) layer.attention().window = window.value_or(if_absent);
  BATON_RETURN_IF_ERROR(CheckLayerTypes(config, model));
  return model;
}

// Queries grow with the position beyond the context before YaRN.
absl::StatusOr<ModelConfig> DescribeMinistral3(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {.head_dim = 128, .kv_heads = 8}));
  if (!config.Has("rope_parameters")) {  // its class default is a scaling that no file need mean
    return config.Invalid("rope_parameters", "found nothing, expected an object");
  }
  RopeRequest request = RopeRequestOf(model);
  request.query_scale = true;
  BATON_RETURN_IF_ERROR(SetRope(config, request, &model));
  BATON_ASSIGN_OR_RETURN(const int window, config.IntOr("sliding_window", 1, kMaxPositions, 0));
  BATON_RETURN_IF_ERROR(SetWindows(
      config, window, [](int) { return true; }, &model));
  return model;
}

absl::Status AddMinistral3Gguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(config.AddYarnMagnitude());
  BATON_ASSIGN_OR_RETURN(const auto beta, config.Real("attention.temperature_scale"));
  if (beta) config.AddToRope("llama_4_scaling_beta", *beta);
  config.UseRopeParameters();
  BATON_ASSIGN_OR_RETURN(const bool slides, config.CopyWindow());
  if (!slides) config.AddJson("sliding_window", "null");
  return absl::OkStatus();
}

}  // namespace

const Architecture kMistral = {
    .name = "MistralForCausalLM",
    .model_type = "mistral",
    .describe = DescribeMistral,
};
const Architecture kMinistral3 = {
    .name = "Ministral3ForCausalLM",
    .model_type = "ministral3",
    .describe = DescribeMinistral3,
    .gguf = "mistral3",
    .gguf_pairs_rows = true,
    .add_gguf = AddMinistral3Gguf,
};

}  // namespace baton::model
