// SmolLM3: Llama, of which every fourth layer has no rotation.
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

absl::StatusOr<ModelConfig> DescribeSmolLm3(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model,
                         ReadDense(config, {.tied_embeddings = true, .kv_heads = 4}));
  RopeRequest request = RopeRequestOf(model);
  request.default_theta = 2e6;
  BATON_RETURN_IF_ERROR(SetRope(config, request, &model));
  // A layer whose entry is 1 rotates its queries and keys, though the key's name says the contrary.
  BATON_ASSIGN_OR_RETURN(const std::vector<int> rotates, config.Ints("no_rope_layers", 0, 1));
  BATON_ASSIGN_OR_RETURN(const int interval,
                         config.IntOr("no_rope_layer_interval", 1, kMaxLayers, 4));
  if (!rotates.empty() && rotates.size() != model.layers.size()) {
    return config.Invalid(
        "no_rope_layers",
        absl::StrCat("found ", rotates.size(), " entries, expected ", model.layers.size()));
  }
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const bool turns =
        rotates.empty() ? (static_cast<int>(i) + 1) % interval != 0 : rotates[i] == 1;
    if (!turns) model.layers[i].attention().rope = kNoRope;
  }
  BATON_ASSIGN_OR_RETURN(const bool slides, config.Bool("use_sliding_window", false));
  int window = 0;
  if (slides) {
    BATON_ASSIGN_OR_RETURN(window, config.IntOr("sliding_window", 1, kMaxPositions, 0));
  } else {
    config.Ignore("sliding_window");
  }
  BATON_RETURN_IF_ERROR(SetWindows(
      config, window,
      [&](int i) { return model.layers[static_cast<size_t>(i)].attention().rope == kNoRope; },
      &model));
  return model;
}

}  // namespace

const Architecture kSmolLm3 = {
    .name = "SmolLM3ForCausalLM",
    .model_type = "smollm3",
    .describe = DescribeSmolLm3,
    .gguf = "smollm3",
    .gguf_pairs_rows = true,
};

}  // namespace baton::model
