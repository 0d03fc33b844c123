// The models whose shapes are timed, and the shapes.
#ifndef BATON_BENCHMARKS_GPU_SHAPES_H_
#define BATON_BENCHMARKS_GPU_SHAPES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace baton::gpu_bench {

inline constexpr int kBlockTokens = 16;
inline constexpr int kElementBytes = 2;  // of 16-bit values

struct ModelShape {
  std::string name;
  int hidden = 0;
  int layers = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  int vocab = 0;
  bool tied_embeddings = false;
  int max_positions = 32768;
  int bits = 0;  // 4: GPTQ in groups of group_size
  int group_size = 128;
  // Above 0: the model is Qwen3-MoE, and ffn is an expert's. 0: it is Qwen2.
  int experts = 0;
  int experts_per_token = 0;
  // Only the kernel benchmarks read these: no whole model with them is timed.
  bool gelu = false;        // else SiLU
  bool post_norms = false;  // what a layer adds is normed
  int window = 0;           // of some layers; 0: of none
  float score_cap = 0;
  float logit_cap = 0;
  bool sinks = false;
  // Not 0: attention is latent; kv_heads is 1, and head_dim the latent and the rotated part.
  int latent_dim = 0;
  int plain = 0;      // of a head's query, the elements without a position
  int value_dim = 0;  // of a head, expanded

  int qkv_rows() const { return (query_heads + 2 * kv_heads) * head_dim; }
};

// config.json, as Hugging Face has it.
std::string ConfigJson(const ModelShape& shape);

// A matrix W [n, k] of a layer, or the LM head. Those of experts are not among them.
struct MatrixShape {
  std::string name;
  int n = 0;
  int k = 0;
  int count = 1;  // in the model
};
std::vector<MatrixShape> LayerMatrices(const ModelShape& shape);
MatrixShape LmHead(const ModelShape& shape);

// A recurrent layer: the gated delta rule, or Mamba 2, behind its convolution.
struct RecurrenceShape {
  std::string name;
  bool delta = false;
  int heads = 0;
  int keys = 0;   // heads of keys, or groups
  int depth = 0;  // of a head's state, by its lanes
  int lanes = 0;
  int taps = 4;

  int64_t channels() const { return int64_t{heads} * lanes + int64_t{2} * keys * depth; }
};
struct RecurrenceStep {
  int sequences = 0;
  int tokens = 0;  // of each
};

// The shapes and durations of a run.
struct Grid {
  std::vector<RecurrenceShape> recurrences;
  std::vector<RecurrenceStep> recurrence_steps;
  std::vector<ModelShape> models;
  // Other architectures, whose forms of the kernels are timed at a few shapes; no checkpoints.
  std::vector<ModelShape> kernel_models;
  std::vector<int> kernel_batches;  // of their decode steps, and rows of other kernels
  int kernel_context = 0;           // before their steps; also the length of their prompt
  std::vector<int> batches;         // of decode steps
  std::vector<int> contexts;        // tokens before the step's
  std::vector<int> prompts;         // tokens; each also with its first half cached
  std::vector<int> quantized_prompts;
  std::vector<int> gemv_rows;  // of products with 16-bit weights
  std::vector<int> quantized_rows;
  std::vector<int> pass_rows;  // of norms and the like
  int vocab = 0;               // of sampling
  int history = 0;             // tokens that penalties look at
  int copied_blocks = 0;
  std::vector<int> expert_rows;  // of layers of experts
  int step_rows = 0;             // rows of the largest step: longer prompts take several
  int steps = 0;                 // a decode figure is the median of so many
  int64_t copy_bytes = 0;
  int matrix_side = 0;    // of the product that is the matrix rate
  size_t slab_bytes = 0;  // device memory for operands
  double round_seconds = 0;
  int rounds = 1;

  // Those of Qwen2.5: 0.5B, 1.5B, 3B, 7B and 7B with weights of 4 bits; Qwen3-30B-A3B with weights
  // of 4 bits, and 8 of its layers with 16; kernels of Gemma 2, 3 and 4, gpt-oss, DeepSeek-V2-Lite
  // and GLM-4.7-Flash. free_bytes: of the device.
  static Grid Full(size_t free_bytes);
  // A tiny model for the CPU: every row, with meaningless figures.
  static Grid Tiny();
};

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_SHAPES_H_
