// EXAONE 4: norms behind the sublayers only, norms of each head's query and key. With windows, only
// layers that have one rotate.
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

absl::StatusOr<ModelConfig> DescribeExaone4(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  RemoveNormsBefore(&model);
  AddPostNorms(&model);
  AddQkNorms(/*all_heads=*/false, &model);
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  BATON_ASSIGN_OR_RETURN(const int window, config.IntOr("sliding_window", 1, kMaxPositions, 0));
  // The pattern may be a text beside layer_types, as "LLLG", and means nothing without a window.
  int pattern = 4;
  const bool is_text = config.HasText("sliding_window_pattern") && config.Has("layer_types");
  if (window == 0 || is_text) {
    config.Ignore("sliding_window_pattern");
  } else {
    BATON_ASSIGN_OR_RETURN(pattern, config.IntOr("sliding_window_pattern", 1, kMaxLayers, 4));
  }
  BATON_RETURN_IF_ERROR(SetWindows(
      config, window, [&](int layer) { return (layer + 1) % pattern != 0; }, &model));
  for (LayerSpec& layer : model.layers) {
    AttentionSpec& attention = layer.attention();
    if (window > 0 && attention.window == 0) attention.rope = kNoRope;
  }
  return model;
}

absl::Status AddExaone4Gguf(GgufConfig& config) {
  BATON_ASSIGN_OR_RETURN(const bool slides, config.CopyWindow());
  return slides ? config.CopyWindowPattern() : absl::OkStatus();
}

}  // namespace

const Architecture kExaone4 = {
    .name = "Exaone4ForCausalLM",
    .model_type = "exaone4",
    .describe = DescribeExaone4,
    .gguf = "exaone4",
    .add_gguf = AddExaone4Gguf,
};

}  // namespace baton::model
