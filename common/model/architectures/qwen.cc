// Qwen2, Qwen2.5 and Qwen3, dense.
#include <string>
#include <vector>

#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

// use_sliding_window false overrides all else; else layer_types or max_window_layers choose the
// layers that slide.
absl::Status SetQwenWindows(const JsonFields& config, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const bool slides, config.Bool("use_sliding_window", false));
  if (!slides) {
    config.Ignore("sliding_window");
    return CheckLayerTypes(config, *model);
  }
  BATON_ASSIGN_OR_RETURN(const int window, config.Int("sliding_window", 1, kMaxPositions));
  BATON_ASSIGN_OR_RETURN(const std::vector<std::string> types, config.Strings("layer_types"));
  int full_layers = 0;
  if (types.empty()) {
    BATON_ASSIGN_OR_RETURN(full_layers, config.Int("max_window_layers", 0, kMaxPositions));
  }
  return SetWindows(
      config, window, [&](int layer) { return layer >= full_layers; }, model);
}

absl::StatusOr<ModelConfig> DescribeQwen2(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  // Whatever the config says.
  for (LayerSpec& layer : model.layers) layer.attention().qkv.bias = true;
  BATON_RETURN_IF_ERROR(SetQwenWindows(config, &model));
  return model;
}

absl::StatusOr<ModelConfig> DescribeQwen3(const JsonFields& config) {
  if (!config.Has("head_dim")) {  // its class default is 128, whatever hidden_size is
    return config.Invalid("head_dim", "found nothing, expected an integer");
  }
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  AddQkNorms(/*all_heads=*/false, &model);
  BATON_RETURN_IF_ERROR(SetQwenWindows(config, &model));
  return model;
}

}  // namespace

const Architecture kQwen2 = {
    .name = "Qwen2ForCausalLM",
    .model_type = "qwen2",
    .describe = DescribeQwen2,
    .gguf = "qwen2",
};
const Architecture kQwen3 = {
    .name = "Qwen3ForCausalLM",
    .model_type = "qwen3",
    .describe = DescribeQwen3,
    .gguf = "qwen3",
};

}  // namespace baton::model
