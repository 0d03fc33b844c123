// Phi-3 and Phi-4-mini: Llama with q, k and v in one tensor, and gate and up; part of a head is
// rotated, with longrope.
#include "common/base/status_macros.h"
#include "common/model/architectures/list.h"
#include "common/model/architectures/reading.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

absl::StatusOr<ModelConfig> DescribePhi3(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(ModelConfig model, ReadDense(config, {}));
  RopeRequest request = RopeRequestOf(model);
  request.partial = request.longrope = true;
  config.Ignore("original_max_position_embeddings");  // counts with longrope only
  BATON_RETURN_IF_ERROR(SetRope(config, request, &model));
  // Every so many layers attend to everything: all.
  BATON_RETURN_IF_ERROR(config.IntOr("full_attn_mod", 1, 1, 1).status());
  BATON_ASSIGN_OR_RETURN(const int window, config.IntOr("sliding_window", 1, kMaxPositions, 0));
  BATON_RETURN_IF_ERROR(SetWindows(
      config, window, [](int) { return true; }, &model));
  for (LayerSpec& layer : model.layers) {
    ProductSpec& qkv = layer.attention().qkv;
    qkv.parts = {{{"self_attn.qkv_proj", "attn_qkv"}, qkv.rows()}};
    ProductSpec& gate_up = layer.mlp().gate_up;
    gate_up.parts = {{{"mlp.gate_up_proj", "ffn_up"}, gate_up.rows()}};
  }
  return model;
}

// The files have the magnitude of longrope, and its factors as tensors.
absl::Status AddPhi3Gguf(GgufConfig& config) {
  BATON_RETURN_IF_ERROR(config.AddLongRope());
  return config.CopyWindow().status();
}

}  // namespace

const Architecture kPhi3 = {
    .name = "Phi3ForCausalLM",
    .model_type = "phi3",
    .describe = DescribePhi3,
    .gguf = "phi3",
    .gguf_partial_rotary = true,
    .add_gguf = AddPhi3Gguf,
};

}  // namespace baton::model
