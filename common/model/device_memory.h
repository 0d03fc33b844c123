// Computes the device memory of a model from its config only: the allocations of weights.cc and
// transformer.cc. A model that does not fit is refused before it is loaded.
#ifndef BATON_COMMON_MODEL_DEVICE_MEMORY_H_
#define BATON_COMMON_MODEL_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>

#include "common/backend/backend.h"
#include "common/model/model_config.h"

namespace baton::model {

// The end of every allocation on a device is rounded up to this.
inline constexpr int64_t kDeviceAlignment = 256;

struct MemorySize {
  int64_t bytes = 0;         // requested
  int64_t device_bytes = 0;  // allocated, with alignment
  int64_t allocations = 0;

  void Add(int64_t more_bytes) {
    bytes += more_bytes;
    device_bytes += (more_bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    ++allocations;
  }
  void Add(const MemorySize& more) {
    bytes += more.bytes;
    device_bytes += more.device_bytes;
    allocations += more.allocations;
  }
};

// How the matrices of the layers are kept; embedding and LM head are never quantised.
struct WeightFormat {
  int bits = 0;          // 4 or 8; 0: the activations' type
  int group_size = 128;  // columns that share a scale and a zero point, 32 bits on a device
  // True if there are no zero points, as in --weights and GGUF's Q4_0 and Q8_0: 32 columns then
  // take 16 bits for their scale.
  bool symmetric = false;
  bool mxfp4 = false;  // experts alone, in 4 bits; 32 columns share a scale of 8 bits

  bool quantized() const { return bits > 0; }
};
// Bytes of one matrix. activation: its type if it is not quantised.
int64_t MatrixBytes(int64_t rows, int64_t cols, const WeightFormat& format,
                    backend::DType activation);

struct WeightSizes {
  MemorySize embedding;
  MemorySize attention;     // q, k, v and o, and the products of recurrent layers
  MemorySize feed_forward;  // gate, up and down
  MemorySize vectors;       // norms and biases, float32
  MemorySize lm_head;       // tied to the embedding or not
  // Experts that are kept in the host's memory, which are in no other size, and StepLimits'
  // fetched_expert_bytes for them.
  MemorySize host_experts;
  int64_t fetched_expert_bytes = 0;

  MemorySize total() const;  // of the device's memory, without what is fetched
};

// Sizes of weights packed without padding, as on a GPU. stored_embedding: the embedding's type in
// the file, which it keeps on the device. experts_on_host: as LoadWeights'.
WeightSizes WeightMemory(const ModelConfig& config, backend::DType activation,
                         backend::DType stored_embedding, const WeightFormat& format = {},
                         int experts_on_host = 0);

// Layers with experts; and whether layer `layer` is one of the first `experts_on_host` of them.
int ExpertLayers(const ModelConfig& config);
bool HasExpertsOnHost(const ModelConfig& config, size_t layer, int experts_on_host);

// Sets the fields of `limits` about quantised matrices, experts' excepted, and those about experts.
void SetMatrixLimits(const ModelConfig& config, backend::StepLimits* limits);

// Size of the RoPE tables: cos and sin of every position.
MemorySize RopeMemory(const ModelConfig& config, int max_positions);

// Elements between two rows of logits: a multiple of 8, since GPU kernels move 16 bytes at a time.
constexpr int64_t LogitStride(int64_t vocab_size) { return (vocab_size + 7) / 8 * 8; }

// What a backend says of the scratch of its operations.
struct ScratchNeeds {
  bool gate_up = true;           // Backend::needs_gate_up; without a gate it is needed in any case
  bool experts_at_once = false;  // Backend::experts_at_once
};

// The tensors between the operations of the largest step.
struct Workspaces {
  struct Shape {
    int64_t rows = 0;
    int64_t cols = 0;
    backend::DType dtype = backend::DType::kF32;
    int64_t size_bytes() const { return rows * cols * static_cast<int64_t>(SizeOf(dtype)); }
  };
  Shape residual;  // f32 [rows, d]
  Shape normed;    // activation [rows, d]
  // f32 [rows, (Hq + 2 Hkv) h]; of latent attention: LatentSpec; RecurrentSpec::in.
  Shape qkv;
  Shape q;  // f32 [rows, Hq h]
  // Activation [rows, Hq h]; of latent attention: LatentSpec; what RecurrentSpec::output
  // multiplies.
  Shape attended;
  // No rows without recurrent layers of their kind.
  Shape convolved;  // f32 [rows, RecurrentSpec::conv_width()]
  Shape steps;      // f32 [rows, 2 heads]
  Shape recurred;   // f32 [rows, heads h]
  Shape inputs;     // f32 [rows, LayerInputsSpec::columns()]
  Shape q_up;       // f32 [rows, Hq (plain + rotated)], or no rows: LatentSpec
  Shape delta;      // f32 [rows, d]
  // The MLP that needs the most decides, experts (backend::ExpertScratch) included.
  Shape gate_up;  // f32 [rows, 2 f], without a gate [rows, f]; or no rows
  Shape gated;    // activation [rows, f]
  // No rows without experts.
  Shape expert_logits;   // f32 [rows, experts]
  Shape expert_inputs;   // activation [input rows, d]
  Shape expert_results;  // f32 [result rows, d]
  Shape logit_residual;  // f32 [logit rows, d]
  Shape logit_q;         // f32 [logit rows, Hq h]
  Shape logit_inputs;    // f32 [logit rows, LayerInputsSpec::columns()]
  Shape logits;          // f32 [logit rows, LogitStride(v)]
};
// Returns the shapes for the widest layers, with at most as many logit rows as rows.
Workspaces WorkspacesOf(const ModelConfig& config, int max_rows, int max_logit_rows,
                        backend::DType activation, const ScratchNeeds& needs);
MemorySize WorkspaceMemory(const Workspaces& workspaces);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_DEVICE_MEMORY_H_
