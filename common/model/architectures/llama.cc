// Llama 2 and 3, and models of their form, such as SmolLM2.
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"

namespace baton::model {
namespace {

// Llama's class in Transformers has no window. Files that were converted from Qwen have the keys of
// one, switched off.
absl::StatusOr<ModelConfig> DescribeLlama(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  BATON_RETURN_IF_ERROR(SetRope(config, &model));
  BATON_ASSIGN_OR_RETURN(const bool slides, config.Bool("use_sliding_window", true));
  if (!slides) config.Ignore("sliding_window");
  BATON_RETURN_IF_ERROR(CheckLayerTypes(config, model));
  return model;
}

// Files of Mistral's models are Llama's with one window for all layers, or with experts.
absl::Status AddLlamaGguf(GgufConfig& config) {
  BATON_ASSIGN_OR_RETURN(const bool slides, config.CopyWindow());
  if (slides) config.SetArchitecture("MistralForCausalLM");
  if (!config.has_experts()) return absl::OkStatus();
  config.SetArchitecture("MixtralForCausalLM");
  return config.CopyExperts("num_local_experts", "");
}

}  // namespace

const Architecture kLlama = {
    .name = "LlamaForCausalLM",
    .model_type = "llama",
    .describe = DescribeLlama,
    .gguf = "llama",
    .gguf_pairs_rows = true,
    .gguf_experts = true,
    .add_gguf = AddLlamaGguf,
};

}  // namespace baton::model
