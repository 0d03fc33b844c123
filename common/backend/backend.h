// The operations that a forward pass is made of, on one device.
//
// All operations are enqueued on the backend's one compute stream, in call order, and return at
// once where the device is asynchronous; operands must live until an event recorded behind them is
// done. (On the CPU they are done when they return.) Shapes and dtypes are the caller's promise: a
// wrong one is a BATON_CHECK, since the model room has checked everything that came from a file.
//
// One answer: every row of every result is computed in an order that depends on neither the other
// rows of the batch nor the chunking: fixed K order in MatMul for every number of rows, fixed
// 256-token splits in Attention. tests/common/backend proves it on the CPU that the tests run on.
//
// Thread: owned by one scheduler loop; unsynchronized, but Event may be waited for from any thread.
#ifndef BATON_COMMON_BACKEND_BACKEND_H_
#define BATON_COMMON_BACKEND_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/tensor.h"
#include "common/base/check.h"

namespace baton::backend {

// A weight matrix W [out_features, in_features] in the layout that the device's products like best.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }
  virtual int64_t size_bytes() const = 0;  // of device memory

 protected:
  PackedMatrix(int64_t out_features, int64_t in_features)
      : out_features_(out_features), in_features_(in_features) {}
  int64_t out_features_;
  int64_t in_features_;
};

// cos and sin for every position and frequency of one RoPE variant.
class RopeTable {
 public:
  virtual ~RopeTable() = default;
};

// A RaggedBatch on the device, with the plan of work that the attention kernels use.
class DeviceBatch {
 public:
  virtual ~DeviceBatch() = default;
};

// A DeviceBatch and the rows that the step's tensors have: the batch's own, then padding.
struct PaddedBatch {
  std::unique_ptr<DeviceBatch> batch;
  int rows = 0;
};

// Has the device repeat what one decode step enqueued for later ones (a device graph), which costs
// the host one call. Thread: as Backend, which outlives it, as does all that was enqueued.
class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  // In place of Backend::Upload, for batches of one row a sequence, all of them logit rows. Padding
  // rows touch no KV; what they compute is nobody's. Null: not this batch; use Upload.
  virtual PaddedBatch Upload(const RaggedBatch& batch) = 0;
  // Steps of all the kinds that it tells apart, the largest first: who runs each of them twice has
  // nothing left to be recorded later.
  struct Kind {
    int rows = 0;
    int context = 0;  // of each row's sequence
  };
  virtual std::vector<Kind> Kinds() const = 0;
  // Calls `enqueue`, or has the device do what an earlier call enqueued for a batch of as many
  // rows. REQUIRES: `batch` is from the last Upload; what is enqueued are Backend's operations but
  // draws and copies, the same for the same number of rows.
  virtual void Run(const DeviceBatch& batch, absl::FunctionRef<void()> enqueue) = 0;
};

// A point in the compute stream. Destroyed on any thread, before its backend.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Done() const = 0;
  virtual void Wait() const = 0;  // thread-safe
};

struct RopeWriteArgs {
  int layer = 0;
  int query_heads = 0;
  Tensor qkv;                      // f32 [rows, (query_heads + 2 * kv_heads) * head_dim]
  const Buffer* q_norm = nullptr;  // f32 [head_dim], or none: RMS norm per head before RoPE (Qwen3)
  const Buffer* k_norm = nullptr;
  float norm_eps = 0;
  const RopeTable* rope = nullptr;
  Tensor q_out;  // f32 [rows, query_heads * head_dim]: normed and rotated
};

struct AttentionArgs {
  int layer = 0;
  int query_heads = 0;
  float scale = 0;  // on q·k
  int window = 0;   // 0: all; else a row at position p sees (p - window, p]
  Tensor q;         // f32, as RopeWriteKv left it
  Tensor out;       // [rows, query_heads * head_dim], activation_dtype()
};

// Chunks of a pool that the host cannot address.
//
// Thread-safe, and apart from the compute stream: what it waits for is its own copy and, for Read,
// `written`. The backend and the pool outlive it.
class KvCopier {
 public:
  virtual ~KvCopier() = default;
  // The whole chunks of one layer, block after block of layer_stride_bytes, to and from host
  // memory. Both wait until that is done. REQUIRES: layer and blocks are in the pool; the blocks of
  // one Write differ. written: a point of the compute stream behind which the chunks stay as they
  // are; null: they have been so for long.
  virtual void Read(int layer, absl::Span<const int32_t> blocks, const Event* written,
                    std::byte* host) = 0;
  // No step, CopyBlocks or CopyToDevice that reads or writes the blocks is under way, nor begins
  // before it returns: the caller's promise.
  virtual void Write(int layer, absl::Span<const int32_t> blocks, const std::byte* host) = 0;
};

// The largest that a step and its batch can be.
struct StepLimits {
  int max_rows = 0;
  int max_sequences = 0;
  int max_logit_rows = 0;  // of one logits tensor; a batch may name all its rows as logit rows
  int max_positions = 0;   // of a sequence
  int query_heads = 0;     // of the widest layer
  int kv_heads = 0;
  int head_dim = 0;
  int block_tokens = 0;
  int layers = 0;
  int hidden_dim = 0;
  int64_t vocab_size = 0;  // columns of the logits
  // Of the widest quantised matrix; 0: none is. And whether there are any with an `order`.
  int quantized_columns = 0;
  bool reordered_columns = false;
};

// One token to draw, as model::SamplingParams and model::SamplingHistory say, which have checked
// it.
struct SampleRow {
  int logit_row = 0;
  float temperature = 1;  // 0: greedy
  float top_p = 1;
  float min_p = 0;
  int top_k = 0;  // 0 or -1: no limit
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint64_t position = 0;
  // Ids without a logit are ignored in all of these. Host memory, valid for the call.
  absl::Span<const int32_t> tokens;  // the prompt, then the answer so far
  // Not negative: the answer's last token is not in `tokens`; it is the one that was drawn for this
  // row of the last batch uploaded with RaggedBatch.drawn.
  int drawn_row = -1;
  int prompt_tokens = 0;                                   // of `tokens`
  absl::Span<const int32_t> suppressed;                    // in any order, perhaps repeated
  absl::Span<const std::pair<int32_t, float>> logit_bias;  // by id, each once
};

struct SampleOutcome {
  enum class Kind {
    kToken,
    kNonFinite,    // a logit is NaN or +inf, or all are -inf
    kNoTokenLeft,  // all that are not -inf are suppressed
  };
  Kind kind = Kind::kToken;
  int32_t token_id = 0;  // kNonFinite: of the first bad logit; -1 if all are -inf
  float bad_logit = 0;   // kNonFinite: that logit
};

// A matrix product as steps will ask for it, with up to x.rows rows.
struct MatMulUse {
  Tensor x;
  const PackedMatrix* weight = nullptr;
  const Buffer* bias = nullptr;  // or none
  Tensor out;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // One line for people: device, instruction set, threads, compute type.
  virtual std::string Description() const = 0;
  // Equal for backends whose steps should take equally long: Description without what only says how
  // much fits.
  virtual std::string Kind() const { return Description(); }
  // What matrix products take as input; packed weights and, by default, the KV pool have it too.
  virtual DType activation_dtype() const = 0;

  // Makes the memory that steps need besides what is handed to them (staging, workspaces), so that
  // no step allocates. At most two DeviceBatches live at a time. Once, before the first Upload.
  // UNIMPLEMENTED if the device has no kernel for such a shape; RESOURCE_EXHAUSTED.
  virtual absl::Status Prepare(const StepLimits& limits) { return absl::OkStatus(); }
  // Device memory that Prepare will take.
  virtual size_t WorkspaceBytes(const StepLimits& limits) const { return 0; }
  // The largest Allocate that would succeed; nothing where memory is the host's, which others use.
  virtual std::optional<size_t> FreeBytes() const { return std::nullopt; }

  // Memory. RESOURCE_EXHAUSTED, naming the size, if the device has not that much. Zeroed in the
  // order of the compute stream.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) = 0;
  virtual void CopyToDevice(void* device, const void* host, size_t size_bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, size_t size_bytes) = 0;  // waits
  // Several matrices with one in_features, stacked by rows into one (q, k and v; gate and up).
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(
      absl::Span<const HostMatrix> stacked) = 0;
  // The same for weights of few bits, all of the same bits, group size and scale type.
  // UNIMPLEMENTED (UNSUPPORTED_MODEL) if the device has no product for them.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> PackQuantized(
      absl::Span<const QuantizedHostMatrix> stacked) = 0;
  // inverse_frequencies: [rotary_dim / 2]; pairs are (i, i + rotary_dim / 2) as Hugging Face has
  // them; cos and sin are multiplied by `factor`. Positions [0, max_positions).
  virtual absl::StatusOr<std::unique_ptr<RopeTable>> MakeRopeTable(
      absl::Span<const double> inverse_frequencies, int max_positions, float factor) = 0;
  // Settles how these products are computed, where that takes trying out: once, when all weights
  // are loaded, after Prepare and before the first MatMul. Writes anything to x and out. May take
  // seconds.
  virtual void Tune(absl::Span<const MatMulUse> products) {}
  virtual std::unique_ptr<DeviceBatch> Upload(const RaggedBatch& batch) = 0;
  // Null: nothing would be gained.
  virtual std::unique_ptr<StepRecorder> MakeStepRecorder() { return nullptr; }
  virtual std::unique_ptr<Event> RecordEvent() = 0;
  // For KvPool.copier; null if the host can address the pool. Waits for what is enqueued: the
  // pool's zeroing.
  virtual std::unique_ptr<KvCopier> MakeKvCopier(const KvPool& pool) { return nullptr; }

  // Operations. rows = rows of the batch.
  // out f32 [rows, d] = table[token] for table [vocab, d] of any dtype.
  virtual void Embed(const DeviceBatch& batch, const Tensor& table, const Tensor& out) = 0;
  // out (f32 or activation dtype) = x / rms(x) * weight; x f32, weight f32 [cols].
  virtual void RmsNorm(const Tensor& x, const Buffer& weight, float eps, const Tensor& out) = 0;
  // residual (f32) += delta (f32); out = RmsNorm(residual).
  virtual void AddRmsNorm(const Tensor& residual, const Tensor& delta, const Buffer& weight,
                          float eps, const Tensor& out) = 0;
  // out f32 [rows, n] = x · Wᵀ + bias; x is activation_dtype(); bias f32 [n] or null.
  virtual void MatMul(const Tensor& x, const PackedMatrix& weight, const Buffer* bias,
                      const Tensor& out) = 0;
  // Norms and rotates q and k, writes k and v to their slots of the pool.
  virtual void RopeWriteKv(const DeviceBatch& batch, const KvPool& pool,
                           const RopeWriteArgs& args) = 0;
  // Causal attention of each row over its sequence's blocks, those of this step included.
  virtual void Attention(const DeviceBatch& batch, const KvPool& pool,
                         const AttentionArgs& args) = 0;
  // out (activation dtype) [rows, f] = silu(gate) * up for gate_up f32 [rows, 2f], gate first.
  virtual void SiluMul(const Tensor& gate_up, const Tensor& out) = 0;
  // SiluMul of MatMul(x, gate_up), in one pass where the device can: the bits of the two, if rows'
  // bits do not depend on their batch. scratch: f32 [rows, 2f]; nothing is said of what it holds
  // then.
  virtual void MatMulSiluMul(const Tensor& x, const PackedMatrix& gate_up, const Tensor& scratch,
                             const Tensor& out) {
    MatMul(x, gate_up, nullptr, scratch);
    SiluMul(scratch, out);
  }
  // out f32 [logit_rows, d] = the batch's logit rows of x f32 [rows, d].
  virtual void GatherLogitRows(const DeviceBatch& batch, const Tensor& x, const Tensor& out) = 0;
  // Whether tokens can be drawn here.
  virtual bool samples_on_device() const { return false; }
  // Enqueues, for each row, the choice that model::Sample makes of equal logits: the first
  // token_count columns of f32 logits [logit_rows, >= token_count], which stay as they are. Several
  // rows may name one logit row. REQUIRES: at most StepLimits' max_logit_rows rows; not more than
  // kMaxDraws enqueued and not collected.
  virtual void EnqueueSample(const Tensor& logits, int64_t token_count,
                             absl::Span<const SampleRow> rows) {
    BATON_CHECK(false) << "this backend draws no tokens";
  }
  // Waits for the first that was enqueued and not collected. REQUIRES: as many outcomes as rows.
  virtual void CollectSample(absl::Span<SampleOutcome> outcomes) {
    BATON_CHECK(false) << "this backend draws no tokens";
  }
  static constexpr int kMaxDraws = 2;
  // Copies whole blocks, all layers: target[i] = source[i]. For copy-on-write.
  virtual void CopyBlocks(const KvPool& pool, absl::Span<const int32_t> sources,
                          absl::Span<const int32_t> targets) = 0;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_BACKEND_H_
