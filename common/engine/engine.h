// Model, KV memory and backend of one worker: runs steps. A scheduler decides
// which step to run, a BlockPool which sequence has which blocks.
#ifndef BATON_COMMON_ENGINE_ENGINE_H_
#define BATON_COMMON_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/backend/backend_options.h"
#include "common/engine/batch.h"
#include "common/kv/kv_layout.h"
#include "common/model/model_config.h"
#include "common/model/transformer.h"

namespace baton::engine {

struct EngineOptions {
  std::string model_dir;
  std::string generation_overrides;  // see model::ReadGenerationConfig
  backend::BackendOptions backend;
  int weight_bits = 0;  // ModelConfig::load_bits: 0, 4 or 8
  // On a GPU: layers with experts, from the first one on, whose experts are kept in the host's
  // memory; more than there are: all. nullopt: as few as PlanMemory finds.
  std::optional<int> experts_on_host = 0;
  int block_tokens = 16;
  // nullopt: the activations' type. Of the unquantised ones that, or kBF16 where it is float32.
  std::optional<kv::KvDtype> kv_dtype;
  int num_blocks = 0;                 // 0: as many as kv_cache_bytes holds
  int64_t kv_cache_bytes = 0;  // 0: on the CPU cpu_kv_cache_bytes, on a GPU the rest of its arena
  int64_t cpu_kv_cache_bytes = int64_t{1} << 30;
  int max_model_len = 0;              // 0: the model's context length
  int max_num_batched_tokens = 2048;  // rows of the largest step
  int max_num_seqs = 64;              // entries of the largest step
  // KV may be mixed with that of workers whose results differ in their last bits.
  bool mix_numerics = false;
  // Other processes of the host may map the KV pool to read it (KvPool.shared_file), if it is host
  // memory.
  bool share_kv_pool = false;
  // Load the checkpoint's MTP head, too. A checkpoint without one fails (MTP_HEAD_MISSING).
  bool load_mtp_head = false;
  // What the head's KV pool takes at most. 0: on the CPU kCpuMtpKvBytes, on a GPU what the head's
  // weights and workspaces leave of mtp_gpu_memory_utilization, a part of the backend's share.
  int64_t mtp_kv_bytes = 0;
  static constexpr int64_t kCpuMtpKvBytes = 256 << 20;
  double mtp_gpu_memory_utilization = 0.1;
  // A step of the head has up to so many rows of each of max_num_seqs sequences.
  static constexpr int kMtpRowsOfSequence = 8;
  // Steps that Load runs on a GPU, so that no request waits for kernels to be loaded or for CUDA
  // graphs to be captured. kPrompt: a prompt and a draw; kPromptAndDecode: also every kind of
  // decode step.
  enum class WarmUp { kNone, kPrompt, kPromptAndDecode };
  WarmUp warm_up = WarmUp::kNone;
  std::function<void(double)> progress;  // called with the share of the weights loaded, 0 to 1
  // Empty: backend::MakeBackend.
  std::function<absl::StatusOr<std::unique_ptr<backend::Backend>>(const backend::BackendOptions&)>
      make_backend;
};

// The result of a step for one entry. An error fails that request, not the step.
struct StepResult {
  // The `draws` tokens drawn, or up to `beam_candidates` tokens; only for entries with `sample`.
  absl::StatusOr<std::vector<model::SampledToken>> tokens = absl::NotFoundError("not sampled");
  // One per token of `targets`, if `prompt_logprobs` is set.
  absl::StatusOr<std::vector<model::SampledToken>> prompt_logprobs =
      std::vector<model::SampledToken>();
  // One per token of `labels`.
  absl::StatusOr<std::vector<float>> label_logprobs = std::vector<float>();
  std::vector<float> hidden_state;   // [hidden_dim], if `embed` is set
  std::vector<float> hidden_states;  // [1 + drafts, hidden_dim], if `hidden_states` is set
};

// An interface, so that schedulers can run over an engine that computes nothing. Load() returns the
// implementation that runs a model.
//
// Thread: owned by one loop. Other threads may read and write KvPool memory by the rules of
// common/transfer.
class Engine {
 public:
  virtual ~Engine() = default;

  // Loads the model and makes the KV pool. INVALID_ARGUMENT, NOT_FOUND or UNIMPLEMENTED for files
  // and options; RESOURCE_EXHAUSTED, with the arithmetic, if the model does not fit: on a GPU
  // (MODEL_TOO_LARGE) before the weights are read.
  static absl::StatusOr<std::unique_ptr<Engine>> Load(const EngineOptions& options);

  // Runs one forward pass and samples its entries; results are in the entries' order. Waits for the
  // device: the KV written to the blocks may be read when it returns.
  // REQUIRES: 1 <= rows <= max_num_batched_tokens, at most max_num_seqs entries.
  virtual std::vector<StepResult> Step(const Batch& batch,
                                       model::LayerObserver* observer = nullptr) = 0;
  // Step in two halves, for batches with RunsAhead: Launch returns when the step is enqueued, and
  // Collect waits for the first step that was launched and not collected. So the host can launch
  // the next step before it knows this one's tokens (BatchEntry.drawn_by), and works while the
  // device does. What `batch` refers to need not live longer than Launch. Between a Launch and its
  // Collect the step writes to its blocks; all that this interface enqueues runs after it, but a
  // copier's writes do not. REQUIRES: at most kMaxLaunched steps are launched and not collected; no
  // Step meanwhile.
  virtual bool RunsAhead(const Batch& batch) const { return false; }
  virtual void Launch(const Batch& batch);
  virtual std::vector<StepResult> Collect();
  static constexpr int kMaxLaunched = 2;
  // Copies whole pages (KvPages in kv_layout.h), for copy-on-write: targets[i] = sources[i].
  // CopyPages and WritePages wait until the copy is done if kv_pool().copier is another way to the
  // pages.
  virtual void CopyPages(absl::Span<const int32_t> sources, absl::Span<const int32_t> targets) = 0;
  // Copy whole pages to and from host memory, kv_pool().block_stride_bytes for each page in turn.
  virtual void ReadPages(absl::Span<const int32_t> pages, std::byte* host) = 0;
  virtual void WritePages(absl::Span<const int32_t> pages, const std::byte* host) = 0;
  // The checkpoint's head for multi-token prediction (MTP) drafts the token behind the next one.
  // It is an engine with another KV pool, whose entries have `hidden_before`. Null:
  // EngineOptions.load_mtp_head is false. The thread that runs this engine's steps runs its steps
  // between them.
  virtual Engine* mtp_head() { return nullptr; }
  // As Backend::MakeDeviceLinks, for the KV pool.
  virtual absl::StatusOr<std::shared_ptr<backend::DeviceLinks>> MakeDeviceLinks();
  // Returns one line for logs: device, instruction set or chip, types, and what fits if memory is
  // bounded.
  virtual std::string Description() const = 0;
  // Same as Backend::Kind.
  virtual std::string DeviceKind() const { return Description(); }

  const model::ModelConfig& config() const { return config_; }
  const kv::KvLayout& kv_layout() const { return layout_; }
  const backend::KvPool& kv_pool() const { return pool_; }
  int max_model_len() const { return max_model_len_; }
  int max_num_batched_tokens() const { return max_num_batched_tokens_; }
  int max_num_seqs() const { return max_num_seqs_; }

 protected:
  Engine() = default;

  // Set before the engine is handed out.
  model::ModelConfig config_;
  kv::KvLayout layout_;
  backend::KvPool pool_;
  int max_model_len_ = 0;
  int max_num_batched_tokens_ = 0;
  int max_num_seqs_ = 0;
};

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_ENGINE_H_
