// OLMo 2 and 3: norms behind the sublayers only, and norms of all heads' queries and keys together.
// OLMo 3 has windows in three layers of four, whose rotation is not scaled.
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

absl::StatusOr<ModelConfig> DescribeOlmo(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  RemoveNormsBefore(&model);
  AddPostNorms(&model);
  AddQkNorms(/*all_heads=*/true, &model);
  return model;
}

absl::StatusOr<ModelConfig> DescribeOlmo2(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, DescribeOlmo(config));
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  return model;
}

absl::StatusOr<ModelConfig> DescribeOlmo3(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, DescribeOlmo(config));
  BATON_ASSIGN_OR_RETURN(const int window, config.IntOr("sliding_window", 1, kMaxPositions, 4096));
  BATON_RETURN_IF_ERROR(SetWindows(
      config, window, [](int layer) { return (layer + 1) % 4 != 0; }, &model));
  RopeRequest full = RopeRequestOf(model);
  full.default_theta = 5e5;
  RopeRequest sliding = full;
  sliding.scales = false;
  BATON_RETURN_IF_ERROR(SetRopesByWindow(config, full, sliding, &model));
  return model;
}

// One architecture for both, told apart by the windows.
absl::Status AddOlmoGguf(GgufConfig& config) {
  BATON_ASSIGN_OR_RETURN(const bool slides, config.CopyWindow());
  if (!slides) return absl::OkStatus();
  config.SetArchitecture("Olmo3ForCausalLM");
  return config.CopyWindowPattern();
}

}  // namespace

const Architecture kOlmo2 = {
    .name = "Olmo2ForCausalLM",
    .model_type = "olmo2",
    .describe = DescribeOlmo2,
    .gguf = "olmo2",
    .add_gguf = AddOlmoGguf,
};
const Architecture kOlmo3 = {
    .name = "Olmo3ForCausalLM",
    .model_type = "olmo3",
    .describe = DescribeOlmo3,
};

}  // namespace baton::model
