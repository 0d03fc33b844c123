// The operations that a forward pass is made of, on one device.
//
// All operations are enqueued on the backend's one compute stream, in call order, and return at once
// where the device is asynchronous; operands must live until an event recorded behind them is done.
// (On the CPU they are done when they return.) Shapes and dtypes are the caller's promise: a wrong
// one is a BATON_CHECK, since the model room has checked everything that came from a file.
//
// One answer: every row of every result is computed in an order that depends on neither the other
// rows of the batch nor the chunking: fixed K order in MatMul for every number of rows, fixed
// 256-token splits in Attention. tests/common/backend proves it on the CPU that the tests run on.
//
// Thread: owned by one scheduler loop; unsynchronized, but Event may be waited for from any thread.
#ifndef BATON_COMMON_BACKEND_BACKEND_H_
#define BATON_COMMON_BACKEND_BACKEND_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/tensor.h"

namespace baton::backend {

// A weight matrix W [out_features, in_features] in the layout that the device's products like best.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  int64_t out_features() const { return out_features_; }
  int64_t in_features() const { return in_features_; }

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

// A point in the compute stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Done() const = 0;
  virtual void Wait() const = 0;  // thread-safe
};

struct RopeWriteArgs {
  int layer = 0;
  int query_heads = 0;
  Tensor qkv;                 // f32 [rows, (query_heads + 2 * kv_heads) * head_dim]
  const Buffer* q_norm = nullptr;  // f32 [head_dim], or none: RMS norm per head before RoPE (Qwen3)
  const Buffer* k_norm = nullptr;
  float norm_eps = 0;
  const RopeTable* rope = nullptr;
  Tensor q_out;               // f32 [rows, query_heads * head_dim]: normed and rotated
};

struct AttentionArgs {
  int layer = 0;
  int query_heads = 0;
  float scale = 0;            // on q·k
  int window = 0;             // 0: all; else a row at position p sees (p - window, p]
  Tensor q;                   // f32, as RopeWriteKv left it
  Tensor out;                 // [rows, query_heads * head_dim], activation_dtype()
};

struct BackendOptions {
  // "auto": bfloat16 where the device multiplies it natively, else float32.
  enum class Compute { kAuto, kF32, kBF16 };
  Compute compute = Compute::kAuto;
  int thread_count = 0;       // CPU only; 0: all cores this process may use
};

class Backend {
 public:
  virtual ~Backend() = default;

  // One line for people: device, instruction set, threads, compute type.
  virtual std::string Description() const = 0;
  // What matrix products take as input; packed weights and, by default, the KV pool have it too.
  virtual DType activation_dtype() const = 0;

  // Memory. RESOURCE_EXHAUSTED, naming the size, if the device has not that much.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) = 0;  // zeroed
  virtual void CopyToDevice(void* device, const void* host, size_t size_bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, size_t size_bytes) = 0;  // waits
  // Several matrices with one in_features, stacked by rows into one (q, k and v; gate and up).
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(
      absl::Span<const HostMatrix> stacked) = 0;
  // inverse_frequencies: [rotary_dim / 2]; pairs are (i, i + rotary_dim / 2) as Hugging Face has
  // them; cos and sin are multiplied by `factor`. Positions [0, max_positions).
  virtual absl::StatusOr<std::unique_ptr<RopeTable>> MakeRopeTable(
      absl::Span<const double> inverse_frequencies, int max_positions, float factor) = 0;
  virtual std::unique_ptr<DeviceBatch> Upload(const RaggedBatch& batch) = 0;
  virtual std::unique_ptr<Event> RecordEvent() = 0;

  // Operations. rows = rows of the batch.
  // out f32 [rows, d] = table[token] for table [vocab, d] (f32 or activation dtype).
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
  // out f32 [logit_rows, d] = the batch's logit rows of x f32 [rows, d].
  virtual void GatherLogitRows(const DeviceBatch& batch, const Tensor& x, const Tensor& out) = 0;
  // Copies whole blocks, all layers: target[i] = source[i]. For copy-on-write.
  virtual void CopyBlocks(const KvPool& pool, absl::Span<const int32_t> sources,
                          absl::Span<const int32_t> targets) = 0;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_BACKEND_H_
