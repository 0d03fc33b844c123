// Model, KV memory and backend of one worker: runs steps. A scheduler decides
// which step to run, a BlockPool which sequence has which blocks.
#ifndef BATON_COMMON_ENGINE_ENGINE_H_
#define BATON_COMMON_ENGINE_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
  backend::BackendOptions backend;
  int block_tokens = 16;
  int num_blocks = 0;                 // 0: as many as kv_cache_bytes holds
  int64_t kv_cache_bytes = 0;         // 0: all that is left of a GPU's share; on the CPU 1 GiB
  int max_model_len = 0;              // 0: what the model was made for
  int max_num_batched_tokens = 2048;  // rows of the largest step
  int max_num_seqs = 64;              // entries of the largest step
  // Steps that Load runs on a GPU, so that no request waits for kernels to be loaded and for steps
  // to be recorded: a prompt and a draw; and decode steps of every kind.
  enum class WarmUp { kNone, kPrompt, kPromptAndDecode };
  WarmUp warm_up = WarmUp::kNone;
  std::function<void(double)> progress;  // of loading, 0 to 1
  // Empty: backend::MakeBackend.
  std::function<absl::StatusOr<std::unique_ptr<backend::Backend>>(const backend::BackendOptions&)>
      make_backend;
};

// The result of a step for one entry. An error fails that request, not the step.
struct StepResult {
  // The tokens drawn, `draws` of them, or up to `beam_candidates`; only for entries with `sample`.
  absl::StatusOr<std::vector<model::SampledToken>> tokens = absl::NotFoundError("not sampled");
  // One for each of `targets`, if `prompt_logprobs` is set.
  absl::StatusOr<std::vector<model::SampledToken>> prompt_logprobs =
      std::vector<model::SampledToken>();
};

// An interface, so that schedulers can be run over an engine that computes nothing. Load() gives
// the one that runs a model.
//
// Thread: owned by one loop; KvPool memory may be read and written by others by the rules of the
// transfer room.
class Engine {
 public:
  virtual ~Engine() = default;

  // Loads the model, makes the KV pool. INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED about files and
  // options; RESOURCE_EXHAUSTED, with the arithmetic, if it does not fit: on a GPU
  // (MODEL_TOO_LARGE) before the weights are read.
  static absl::StatusOr<std::unique_ptr<Engine>> Load(const EngineOptions& options);

  // One forward pass and the sampling of its entries, results in the entries' order. Waits: what
  // it has written to the blocks may be read.
  // REQUIRES: 1 <= rows <= max_num_batched_tokens, at most max_num_seqs entries.
  virtual std::vector<StepResult> Step(const Batch& batch,
                                       model::LayerObserver* observer = nullptr) = 0;
  // The same in two halves, where RunsAhead: Launch returns when the step is enqueued, and Collect
  // waits for the first step that was launched and not collected. So the host can launch the next
  // step before it knows this one's tokens (BatchEntry.drawn_by), and works while the device does.
  // What `batch` refers to need not live longer than Launch. Between a Launch and its Collect the
  // step writes to its blocks; all that this interface enqueues comes behind, but a copier's writes
  // do not. REQUIRES: at most kMaxLaunched steps are launched and not collected; no Step meanwhile.
  virtual bool RunsAhead(const Batch& batch) const { return false; }
  virtual void Launch(const Batch& batch);
  virtual std::vector<StepResult> Collect();
  static constexpr int kMaxLaunched = 2;
  // Copies whole blocks, all layers: targets[i] = sources[i]. For copy-on-write. This and
  // WriteBlocks wait where kv_pool().copier is another way to the blocks.
  virtual void CopyBlocks(absl::Span<const kv::BlockId> sources,
                          absl::Span<const kv::BlockId> targets) = 0;
  // Whole blocks, all layers, to and from host memory: block after block of
  // kv_layout().BlockBytes().
  virtual void ReadBlocks(absl::Span<const kv::BlockId> blocks, std::byte* host) = 0;
  virtual void WriteBlocks(absl::Span<const kv::BlockId> blocks, const std::byte* host) = 0;
  // One line for logs: device, instruction set or chip, types; what fits, where that is bounded.
  virtual std::string Description() const = 0;
  // As Backend::Kind.
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
