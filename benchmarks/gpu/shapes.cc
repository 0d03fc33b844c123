#include "benchmarks/gpu/shapes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::gpu_bench {
namespace {

constexpr size_t kMostSlabBytes = size_t{6} << 30;

std::vector<ModelShape> Qwen25() {
  std::vector<ModelShape> models = {
      {"qwen2.5-0.5b", 896, 24, 14, 2, 64, 4864, 151936, true},
      {"qwen2.5-1.5b", 1536, 28, 12, 2, 128, 8960, 151936, true},
      {"qwen2.5-3b", 2048, 36, 16, 2, 128, 11008, 151936, true},
      {"qwen2.5-7b", 3584, 28, 28, 4, 128, 18944, 152064, false},
  };
  models.push_back(models.back());
  models.back().name = "qwen2.5-7b-int4";
  models.back().bits = 4;
  return models;
}

// Qwen3-30B-A3B.
std::vector<ModelShape> Experts() {
  ModelShape eight_layers = {"qwen3-30b-a3b-8-layers", 2048, 8, 32, 4, 128, 768, 151936, false};
  eight_layers.experts = 128;
  eight_layers.experts_per_token = 8;
  ModelShape whole = eight_layers;
  whole.name = "qwen3-30b-a3b-int4";
  whole.layers = 48;
  whole.bits = 4;
  return {eight_layers, whole};
}

// Heads of 256 and 512, GELU and post-norms; a cap of scores and of logits; sinks; latents.
std::vector<ModelShape> OtherArchitectures() {
  ModelShape gemma3_4b = {"gemma-3-4b", 2560, 34, 8, 4, 256, 10240, 262208, true};
  gemma3_4b.gelu = gemma3_4b.post_norms = true;
  gemma3_4b.window = 1024;
  ModelShape gemma3_270m = {"gemma-3-270m", 640, 18, 4, 1, 256, 2048, 262144, true};
  gemma3_270m.gelu = gemma3_270m.post_norms = true;
  gemma3_270m.window = 512;
  ModelShape gemma2_9b = {"gemma-2-9b", 3584, 42, 16, 8, 256, 14336, 256000, true};
  gemma2_9b.gelu = gemma2_9b.post_norms = true;
  gemma2_9b.score_cap = 50;
  gemma2_9b.logit_cap = 30;
  // Attention alone: its feed-forward layers are experts.
  ModelShape gpt_oss_20b = {"gpt-oss-20b", 2880, 24, 64, 8, 64, 0, 201088, false};
  gpt_oss_20b.window = 128;
  gpt_oss_20b.sinks = true;
  ModelShape deepseek_v2_lite = {"deepseek-v2-lite", 2048, 27, 16, 1, 576, 0, 102400, false};
  deepseek_v2_lite.latent_dim = 512;
  deepseek_v2_lite.plain = deepseek_v2_lite.value_dim = 128;
  ModelShape glm_flash = {"glm-4.7-flash", 2048, 47, 20, 1, 576, 0, 154880, false};
  glm_flash.latent_dim = 512;
  glm_flash.plain = 192;
  glm_flash.value_dim = 256;
  // Attention of the layers without a window alone.
  const ModelShape gemma4_e2b = {"gemma-4-e2b", 1536, 7, 8, 1, 512, 0, 262144, true};
  return {gemma3_4b, gemma3_270m, gemma2_9b, gemma4_e2b, gpt_oss_20b, deepseek_v2_lite, glm_flash};
}

}  // namespace

std::string ConfigJson(const ModelShape& shape) {
  std::string quantization;
  if (shape.bits > 0) {
    quantization = absl::StrCat(R"(, "quantization_config": {"quant_method": "gptq", "bits": )",
                                shape.bits, R"(, "group_size": )", shape.group_size,
                                R"(, "desc_act": false, "sym": true})");
  }
  std::string kind = R"("architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2")";
  if (shape.experts > 0) {
    kind = absl::StrCat(
        R"("architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": )",
        shape.experts, R"(, "num_experts_per_tok": )", shape.experts_per_token,
        R"(, "moe_intermediate_size": )", shape.ffn, R"(, "head_dim": )", shape.head_dim,
        R"(, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [])");
  }
  return absl::StrCat(
      "{", kind, R"(, "hidden_size": )", shape.hidden, R"(, "intermediate_size": )", shape.ffn,
      R"(, "num_hidden_layers": )", shape.layers, R"(, "num_attention_heads": )", shape.query_heads,
      R"(, "num_key_value_heads": )", shape.kv_heads, R"(, "vocab_size": )", shape.vocab,
      R"(, "max_position_embeddings": )", shape.max_positions,
      R"(, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "hidden_act": "silu", )",
      R"("use_sliding_window": false, "attention_dropout": 0.0, "use_cache": true, )",
      R"("bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16", )",
      R"("tie_word_embeddings": )", shape.tied_embeddings ? "true" : "false", quantization, "}");
}

std::vector<MatrixShape> LayerMatrices(const ModelShape& shape) {
  std::vector<MatrixShape> matrices = {
      {"qkv", shape.qkv_rows(), shape.hidden, shape.layers},
      {"o", shape.hidden, shape.query_heads * shape.head_dim, shape.layers}};
  if (shape.experts == 0) {
    matrices.push_back({"gate_up", 2 * shape.ffn, shape.hidden, shape.layers});
    matrices.push_back({"down", shape.hidden, shape.ffn, shape.layers});
  }
  return matrices;
}

MatrixShape LmHead(const ModelShape& shape) { return {"lm_head", shape.vocab, shape.hidden, 1}; }

Grid Grid::Full(size_t free_bytes) {
  Grid grid;
  grid.models = Qwen25();
  for (ModelShape& model : Experts()) grid.models.push_back(std::move(model));
  grid.kernel_models = OtherArchitectures();
  grid.recurrences = {{"qwen3.5-9b", true, 32, 16, 128, 128},
                      {"granite-4-h-small", false, 128, 1, 128, 64}};
  grid.recurrence_steps = {{1, 1}, {32, 1}, {1, 2048}, {8, 256}};
  grid.kernel_batches = {1, 32};
  grid.kernel_context = 2048;
  grid.batches = {1, 8, 32, 64};
  grid.contexts = {512, 2048, 8192};
  grid.prompts = {512, 2048, 8192};
  grid.quantized_prompts = {512, 2048};
  grid.gemv_rows = {1, 2, 4, 8, 16, 32};
  grid.quantized_rows = {1, 8, 16, 32, 64, 128};
  grid.pass_rows = {1, 64, 2048};
  grid.vocab = 151936;
  grid.history = 2048;
  grid.copied_blocks = 64;
  grid.expert_rows = {1, 8, 32, 64, 512, 2048};
  grid.step_rows = 2048;
  grid.steps = 30;
  grid.copy_bytes = int64_t{1} << 30;
  grid.matrix_side = 8192;
  grid.slab_bytes = std::min(kMostSlabBytes, free_bytes / 2);
  grid.round_seconds = 4e-3;
  grid.rounds = 5;
  return grid;
}

Grid Grid::Tiny() {
  Grid grid;
  grid.models = {{"tiny", 64, 2, 4, 2, 16, 128, 320, true, 512},
                 {"tiny-int4", 64, 2, 4, 2, 16, 128, 320, false, 512, 4, 32}};
  ModelShape experts = {"tiny-experts", 64, 2, 4, 2, 16, 64, 320, true, 512};
  experts.experts = 4;
  experts.experts_per_token = 2;
  grid.models.push_back(experts);
  ModelShape other = {"tiny-other", 64, 2, 4, 2, 16, 128, 324, true, 512};
  other.gelu = other.post_norms = other.sinks = true;
  other.window = 20;
  other.score_cap = other.logit_cap = 30;
  ModelShape latent = {"tiny-latent", 64, 2, 4, 1, 40, 0, 320, true, 512};
  latent.latent_dim = 32;
  latent.plain = latent.value_dim = 16;
  grid.kernel_models = {other, latent};
  grid.recurrences = {{"tiny-delta", true, 4, 2, 32, 16}, {"tiny-mamba", false, 4, 1, 16, 32}};
  grid.recurrence_steps = {{2, 1}, {1, 20}};
  grid.kernel_batches = {1, 2};
  grid.kernel_context = 40;
  grid.batches = {1, 2};
  grid.contexts = {16, 272};
  grid.prompts = {8, 40};
  grid.quantized_prompts = {40};
  grid.gemv_rows = {1, 4};
  grid.quantized_rows = {1, 8};
  grid.pass_rows = {1, 3};
  grid.vocab = 320;
  grid.history = 16;
  grid.copied_blocks = 2;
  grid.expert_rows = {1, 9};
  grid.step_rows = 32;
  grid.steps = 2;
  grid.copy_bytes = 1 << 20;
  grid.matrix_side = 64;
  grid.slab_bytes = size_t{8} << 20;
  grid.round_seconds = 0;
  grid.rounds = 1;
  return grid;
}

}  // namespace baton::gpu_bench
