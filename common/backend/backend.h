// The operations that a forward pass is made of, on one device.
//
// Operations are enqueued on the backend's one compute stream, in call order. On an asynchronous
// device they return at once, and operands must live until an event recorded after them is done; on
// the CPU they are done when they return. A wrong shape or dtype is a BATON_CHECK: the model room
// has checked everything that came from a file.
//
// One answer: the order in which a row is computed depends on neither the other rows of the batch
// nor the chunking. MatMul has one order of K for every number of rows, Attention splits at fixed
// multiples of 256 tokens. tests/common/backend checks it on the CPU that runs the tests.
//
// Thread: owned by one scheduler loop; unsynchronized, but any thread may wait for an Event.
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
#include "common/backend/attention.h"
#include "common/backend/device_link.h"
#include "common/backend/experts.h"
#include "common/backend/kv_copier.h"
#include "common/backend/matrix_packer.h"
#include "common/backend/recurrence.h"
#include "common/backend/tensor.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::backend {

// A RaggedBatch on the device, with the attention kernels' work plan.
class DeviceBatch {
 public:
  virtual ~DeviceBatch() = default;
};

// A DeviceBatch and the rows of the step's tensors: the batch's rows, then padding.
struct PaddedBatch {
  std::unique_ptr<DeviceBatch> batch;
  int rows = 0;
};

// Records what one decode step enqueues and replays it for later steps (a device graph), which
// costs the host one call. Thread: as Backend. The backend and all enqueued operands outlive it.
class StepRecorder {
 public:
  virtual ~StepRecorder() = default;
  // In place of Backend::Upload, for batches of one row a sequence, all of them logit rows. Padding
  // rows touch no KV and their results are ignored. Null if it cannot record this batch: use
  // Upload.
  virtual PaddedBatch Upload(const RaggedBatch& batch) = 0;
  // One step of each kind that is recorded apart, the largest first. Once each has run twice, later
  // steps record nothing.
  struct Kind {
    int rows = 0;
    int context = 0;  // of each row's sequence
  };
  virtual std::vector<Kind> Kinds() const = 0;
  // Calls `enqueue`, or replays what an earlier call enqueued for a batch of as many rows.
  // REQUIRES: `batch` is from the last Upload; `enqueue` calls Backend's operations, except draws
  // and copies, and the same ones for the same number of rows.
  virtual void Run(const DeviceBatch& batch, absl::FunctionRef<void()> enqueue) = 0;
};

// A point in the compute stream. May be destroyed on any thread, before its backend.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Done() const = 0;
  virtual void Wait() const = 0;  // thread-safe
};

// residual += delta, then out = the norm of residual.
struct NormArgs {
  Tensor residual;  // f32 [rows, d]; changes only if there is a delta
  // f32 [rows, d], or no data. What is added is delta * delta_scale or, with delta_weight,
  // delta * delta_scale / rms * delta_weight.
  Tensor delta;
  float delta_scale = 1;
  const Buffer* delta_weight = nullptr;  // f32 [d]
  const Buffer* weight = nullptr;        // f32 [d]: out = residual / rms * weight; null: residual
  float eps = 0;                         // added to both mean squares
  Tensor out;                            // [rows, d], f32 or activation dtype; may be `residual`
};

enum class GatedActivation : uint8_t {
  kSilu,
  kGeluTanh,  // gelu(x) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
  // gpt-oss: g / (1 + e^-1.702g) * (u + 1), with g the least of gate and 7 and u between -7 and 7.
  kClampedSwiglu,
  // Nemotron-H: the larger of 0 and up, squared. There is no gate.
  kSquaredRelu,
};

// Columns of a product that become one of the result: gate and up, or up alone.
constexpr int GatedParts(GatedActivation activation) {
  return activation == GatedActivation::kSquaredRelu ? 1 : 2;
}

// out = activation(gate) * up * scale or, without a gate, activation(up) * scale.
struct GatedArgs {
  GatedActivation activation = GatedActivation::kSilu;
  float scale = 1;  // a power of two, which keeps the result in the activation type's range
};

// The matrices of one of a layer's experts.
struct ExpertMatrices {
  const PackedMatrix* gate_up = nullptr;  // [parts f, d], gate first: GatedParts
  const PackedMatrix* down = nullptr;     // [d, f]
};

struct ExpertBiases {
  const Buffer* gate_up = nullptr;  // f32 [experts, parts f], or none
  const Buffer* down = nullptr;     // f32 [experts, d], or none
};

// A layer's experts, all of one shape and kind of matrix. The matrices and biases outlive it.
class ExpertGroup {
 public:
  ExpertGroup(std::vector<ExpertMatrices> experts, const ExpertBiases& biases)
      : experts_(std::move(experts)), biases_(biases) {
    BATON_CHECK(!experts_.empty());
  }
  virtual ~ExpertGroup() = default;
  const std::vector<ExpertMatrices>& experts() const { return experts_; }
  const ExpertBiases& biases() const { return biases_; }

 private:
  const std::vector<ExpertMatrices> experts_;
  const ExpertBiases biases_;
};
// Device memory that a group takes besides its matrices: two tables of so many bytes an expert, and
// one of where the matrices are if they are in the host's memory.
inline constexpr int64_t kExpertTableEntryBytes = 24, kExpertSourceBytes = 16;

// out = the sum over the experts that a row chooses of weight * down(gated(gate_up(x))); experts.h.
struct ExpertsArgs {
  Tensor x;                              // [rows, d], activation_dtype()
  const PackedMatrix* router = nullptr;  // [experts, d], of PackRouter
  const Buffer* router_bias = nullptr;   // f32 [experts], or none
  const Buffer* choice_bias = nullptr;   // likewise; see ChooseExperts
  ExpertRouting routing;
  const ExpertGroup* group = nullptr;  // of GroupExperts
  GatedArgs gating;
  // Scratch, undefined afterwards. Input, gate_up and result rows: ExpertScratch::For.
  Tensor logits;        // f32 [rows, experts]
  Tensor inputs;        // [input rows, d], activation_dtype(); or none
  Tensor gate_up_rows;  // f32 [gate_up rows, parts f]; or none
  Tensor gated;         // [result rows, f], activation_dtype()
  Tensor results;       // f32 [result rows, d]
  Tensor out;           // f32 [rows, d]
  // The sum is added to what `out` has: the result of experts that all rows share.
  bool accumulates = false;
  // The batch of the rows. Its padding rows choose what its first row does, so that no expert is
  // read for them alone. Null: there is no padding.
  const DeviceBatch* batch = nullptr;
  // f32 [rows, d]: what the router reads in place of x; or no data.
  Tensor router_x = {};
  const Buffer* expert_scales = nullptr;  // f32 [experts], factors of the weights at last, or none
};

// Upper bounds of a step and its batch.
struct StepLimits {
  int max_rows = 0;
  int max_sequences = 0;
  int max_logit_rows = 0;  // of one logits tensor; a batch may have more logit rows
  int max_positions = 0;   // of a sequence
  // The heads of the first layer with attention; other_heads has each other kind once.
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  std::vector<AttentionHeads> other_heads = {};
  int latent_dim = 0;  // KvPool's
  int block_tokens = 0;
  KvFormat kv_format = KvFormat::kPlain;
  int kv_tables = 1;  // of a sequence: KvPool::tables
  // What recurrent layers need: KvPool::state_tables, and the sum of the spots of all planes.
  int state_tables = 0;
  int64_t state_spots = 0;
  int layers = 0;
  int64_t chunk_bytes = 0;  // KvPool::layer_stride_bytes where layers differ in their heads
  int hidden_dim = 0;
  int64_t vocab_size = 0;  // columns of the logits
  // Columns of the widest quantised matrix, 0 if there is none; and whether one has an `order`.
  int quantized_columns = 0;
  bool reordered_columns = false;
  // The most that a layer has, and that a token chooses; 0 if no layer has experts.
  int experts = 0;
  int experts_per_token = 0;
  // The most that the experts of one layer in the host's memory take on the device, where Experts
  // copies them: FetchedMatrixBytes of each matrix. 0: none is in the host's memory.
  int64_t fetched_expert_bytes = 0;

  // All kinds, the first layer's first.
  std::vector<AttentionHeads> heads() const {
    std::vector<AttentionHeads> all = {{query_heads, kv_heads, head_dim}};
    all.insert(all.end(), other_heads.begin(), other_heads.end());
    return all;
  }
};

// One token to draw: the checked fields of model::SamplingParams and model::SamplingHistory.
struct SampleRow {
  int logit_row = 0;
  float temperature = 1;  // 0: greedy
  float top_p = 1, min_p = 0;
  int top_k = 0;  // 0 or -1: no limit
  float repetition_penalty = 1;
  float frequency_penalty = 0;
  float presence_penalty = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint64_t position = 0;
  // Ids without a logit are ignored in all of these. Host memory, valid for the call.
  absl::Span<const int32_t> tokens;  // the prompt, then the answer so far
  // Unless it is kNotDrawn, the answer's last token is not in `tokens`: it is the one drawn for
  // this row of the last batch uploaded with RaggedBatch.drawn.
  int drawn_row = kNotDrawn;
  int prompt_tokens = 0;                                   // of `tokens`
  absl::Span<const int32_t> drafts;                        // more of the answer, behind `tokens`
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

// A matrix product of later steps, of up to x.rows rows.
struct MatMulUse {
  Tensor x;
  const PackedMatrix* weight = nullptr;
  const Buffer* bias = nullptr;  // or none
  Tensor out;
};

class Backend : public MatrixPacker {
 public:
  // One line for people: device, instruction set, threads, compute type.
  virtual std::string Description() const = 0;
  // Equal for backends whose steps should take equally long: Description without memory sizes.
  virtual std::string Kind() const { return Description(); }
  // What the bits of a result are made with, as "cpu fma": backends with the same text compute the
  // same bits of the same inputs. Empty: the bits are not fixed.
  virtual std::string Numerics() const { return ""; }
  // The input type of matrix products; also that of packed weights and, unless it is of fewer
  // bits, of the KV pool.
  virtual DType activation_dtype() const = 0;

  // Allocates what steps need besides their operands (staging, workspaces), so that no step
  // allocates. At most two DeviceBatches live at a time. Called once, before the first Upload.
  // UNIMPLEMENTED if the device has no kernel for such a shape; RESOURCE_EXHAUSTED.
  virtual absl::Status Prepare(const StepLimits& limits) { return absl::OkStatus(); }
  // Device memory that Prepare will allocate.
  virtual size_t WorkspaceBytes(const StepLimits& limits) const { return 0; }
  // The largest Allocate that would succeed; nullopt where memory is the host's.
  virtual std::optional<size_t> FreeBytes() const { return std::nullopt; }

  // RESOURCE_EXHAUSTED, naming the size, if the device does not have that much. The memory is
  // zeroed on the compute stream.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) = 0;
  // The same in a memory file (Buffer::shared_file) where memory is the host's; elsewhere Allocate.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> AllocateShared(size_t size_bytes) {
    return Allocate(size_bytes);
  }
  virtual void CopyToDevice(void* device, const void* host, size_t size_bytes) = 0;
  virtual void CopyToHost(void* host, const void* device, size_t size_bytes) = 0;  // waits
  // Packs matrices of experts in the host's memory, from which Experts copies those that rows
  // choose to the device. Null where the device's memory is the host's. Owned by the backend.
  virtual MatrixPacker* host_packer() { return nullptr; }
  // Positions [0, max_positions).
  virtual absl::StatusOr<std::unique_ptr<RopeTable>> MakeRopeTable(const RopeSpec& spec,
                                                                   int max_positions) = 0;
  // Measures which kernel computes each of these products fastest, where there is a choice. Called
  // once, with all weights loaded, after Prepare and before the first MatMul. Overwrites x and out;
  // may take seconds.
  virtual void Tune(absl::Span<const MatMulUse> products) {}
  virtual std::unique_ptr<DeviceBatch> Upload(const RaggedBatch& batch) = 0;
  // Null if recording gains nothing.
  virtual std::unique_ptr<StepRecorder> MakeStepRecorder() { return nullptr; }
  virtual std::unique_ptr<Event> RecordEvent() = 0;
  // For KvPool.copier; null if the host can address the pool. Waits for what is enqueued, which
  // zeroes the pool.
  virtual std::unique_ptr<KvCopier> MakeKvCopier(const KvPool& pool) { return nullptr; }
  // For links from `pool` to pools of other devices. FAILED_PRECONDITION (DEVICE_LINK) if the
  // device cannot be linked, with what is missing. The backend and the pool outlive the links.
  virtual absl::StatusOr<std::shared_ptr<DeviceLinks>> MakeDeviceLinks(const KvPool& pool) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_LINK",
                     "the KV pool is not in the memory of a device that can be linked");
  }

  // Operations. rows = rows of the batch.
  // out f32 [rows, d] = table[token] * scale for table [vocab, d] of any dtype.
  virtual void Embed(const DeviceBatch& batch, const Tensor& table, float scale,
                     const Tensor& out) = 0;
  // The same with the rows of a packed matrix, which then is the only copy of a tied embedding.
  // REQUIRES: embeds_packed() of the matrix's elements.
  virtual void EmbedPacked(const DeviceBatch& batch, const PackedMatrix& table, float scale,
                           const Tensor& out) {
    BATON_CHECK(false) << "no rows of packed matrices";
  }
  // Whether EmbedPacked gives, bit for bit, what Embed does of a table of `elements`: for matrices
  // that were packed from such elements, or from blocks of fewer bits where `elements` is the
  // activations' type.
  virtual bool embeds_packed(DType elements) const { return false; }
  virtual void Norm(const NormArgs& args) = 0;
  // out f32 [rows, n] = x · Wᵀ + bias; x is activation_dtype(); bias f32 [n] or null.
  virtual void MatMul(const Tensor& x, const PackedMatrix& weight, const Buffer* bias,
                      const Tensor& out) = 0;
  // Norm, then MatMul of its out, which is undefined afterwards; one kernel where the device can.
  virtual void NormMatMul(const NormArgs& norm, const PackedMatrix& weight, const Buffer* bias,
                          const Tensor& out) {
    Norm(norm);
    MatMul(norm.out, weight, bias, out);
  }
  // Whether MatMulAdd computes a product of so many rows.
  virtual bool adds_products(const PackedMatrix& weight, int64_t rows) const { return false; }
  // residual f32 [rows, n] += (x · Wᵀ + bias) * scale: what Norm does with a product as its delta.
  // REQUIRES: adds_products; scale is not 0.
  virtual void MatMulAdd(const Tensor& x, const PackedMatrix& weight, const Buffer* bias,
                         float scale, const Tensor& residual) {
    BATON_CHECK(false) << "this backend adds no products";
  }
  // Norms and rotates q and k, writes k and v to their slots of the pool.
  virtual void RopeWriteKv(const DeviceBatch& batch, const KvPool& pool,
                           const RopeWriteArgs& args) = 0;
  virtual void WriteLatentKv(const DeviceBatch& batch, const KvPool& pool,
                             const LatentWriteArgs& args) {
    BATON_CHECK(false) << "no latent attention";
  }
  // Matrices of one shape, one a head. UNIMPLEMENTED (UNSUPPORTED_MODEL) if the device has no
  // latent attention.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> PackHeads(
      absl::Span<const HostMatrix> heads) {
    return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
                     "this device has no latent attention");
  }
  virtual void MatMulHeads(const HeadProductArgs& args) {
    BATON_CHECK(false) << "no latent attention";
  }
  // Causal attention of each row over its sequence's blocks, those of this step included.
  virtual void Attention(const DeviceBatch& batch, const KvPool& pool,
                         const AttentionArgs& args) = 0;
  // Both, bit for bit, fused where the device can; write.q_out is undefined afterwards. REQUIRES:
  // both are of one layer and have the same heads; attend.q is write.q_out; in a recorded step no
  // sequence sees a token that another one of the batch adds.
  virtual void RopeWriteAttend(const DeviceBatch& batch, const KvPool& pool,
                               const RopeWriteArgs& write, const AttentionArgs& attend) {
    RopeWriteKv(batch, pool, write);
    Attention(batch, pool, attend);
  }
  // The operations of recurrent layers, and GateOutput; recurrence.h has what they compute. A row's
  // bits do not depend on the other sequences, nor on how its sequence was cut into steps.
  virtual void ShortConv(const DeviceBatch& batch, const KvPool& pool, const ShortConvArgs& args) {
    BATON_CHECK(false) << "no recurrent layers";
  }
  virtual void GatedDelta(const DeviceBatch& batch, const KvPool& pool,
                          const GatedDeltaArgs& args) {
    BATON_CHECK(false) << "no recurrent layers";
  }
  virtual void StateSpace(const DeviceBatch& batch, const KvPool& pool,
                          const StateSpaceArgs& args) {
    BATON_CHECK(false) << "no recurrent layers";
  }
  virtual void GatedNorm(const GatedNormArgs& args) { BATON_CHECK(false) << "no recurrent layers"; }
  virtual void GateOutput(const OutputGateArgs& args) {
    BATON_CHECK(false) << "no recurrent layers";
  }
  // out (activation dtype) [rows, f] = activation(gate) * by, both f32 [rows, f]. REQUIRES: the
  // activation has a gate.
  virtual void GateBy(const Tensor& gate, const Tensor& by, GatedActivation, const Tensor& out) = 0;
  // out (activation dtype) [rows, f] of gate_up f32 [rows, parts f], gate first: GatedParts.
  virtual void Gate(const Tensor& gate_up, const GatedArgs& args, const Tensor& out) = 0;
  // Whether MatMulGated uses its scratch where there is a gate; else it may be empty.
  virtual bool needs_gate_up() const { return true; }
  // Gate of MatMul(x, gate_up), fused where the device can; with deterministic products it has the
  // bits of the two calls. scratch: f32 [rows, parts f], undefined afterwards.
  virtual void MatMulGated(const Tensor& x, const PackedMatrix& gate_up, const GatedArgs& args,
                           const Tensor& scratch, const Tensor& out) {
    MatMul(x, gate_up, nullptr, scratch);
    Gate(scratch, args, out);
  }
  // Norm, then MatMulGated of its out, which is undefined afterwards.
  virtual void NormMatMulGated(const NormArgs& norm, const PackedMatrix& gate_up,
                               const GatedArgs& args, const Tensor& scratch, const Tensor& out) {
    Norm(norm);
    MatMulGated(norm.out, gate_up, args, scratch, out);
  }
  // A matrix of router logits, which are computed in float32.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> PackRouter(const HostMatrix& matrix) = 0;
  // UNIMPLEMENTED (UNSUPPORTED_MODEL) if the device cannot compute such experts as one.
  virtual absl::StatusOr<std::unique_ptr<ExpertGroup>> GroupExperts(
      std::vector<ExpertMatrices> experts, const ExpertBiases& biases) {
    return std::make_unique<ExpertGroup>(std::move(experts), biases);
  }
  // Whether Experts computes all experts of a layer at once, which decides what scratch it needs.
  virtual bool experts_at_once() const { return false; }
  // A row's bits do not depend on the other rows; experts that none chooses are not read, except
  // from the host's memory in steps of more than kExpertRowsAtOnce rows.
  virtual void Experts(const ExpertsArgs& args) = 0;
  // In place; f32 logits, or rows of another kind: x becomes x * scale or, if cap is not 0,
  // cap * tanh(x * scale / cap).
  virtual void ScaleLogits(const Tensor& logits, float scale, float cap) = 0;
  // out f32 [logit_rows, d] = the batch's logit rows of x f32 [rows, d].
  virtual void GatherLogitRows(const DeviceBatch& batch, const Tensor& x, const Tensor& out) = 0;
  // Whether EnqueueSample is supported.
  virtual bool samples_on_device() const { return false; }
  // Enqueues, for each row, the draw that model::Sample makes from the same logits: the first
  // token_count columns of f32 logits [logit_rows, >= token_count], which do not change. Several
  // rows may name one logit row. REQUIRES: at most StepLimits::max_logit_rows rows; at most
  // kMaxDraws calls that are not collected.
  virtual void EnqueueSample(const Tensor& logits, int64_t token_count,
                             absl::Span<const SampleRow> rows) {
    BATON_CHECK(false) << "this backend draws no tokens";
  }
  // Waits for the oldest call that is not collected. REQUIRES: as many outcomes as it had rows.
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
