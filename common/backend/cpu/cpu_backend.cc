#include "common/backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cpu/attention.h"
#include "common/backend/cpu/cpu_batch.h"
#include "common/backend/cpu/experts.h"
#include "common/backend/cpu/isa.h"
#include "common/backend/cpu/kv_write.h"
#include "common/backend/cpu/mapped_memory.h"
#include "common/backend/cpu/matmul.h"
#include "common/backend/cpu/packed_weights.h"
#include "common/backend/cpu/quantized_panels.h"
#include "common/backend/cpu/recurrence.h"
#include "common/backend/cpu/rows.h"
#include "common/backend/cpu/thread_pool.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/usable_cores.h"

namespace baton::backend {
namespace {

class CpuBuffer final : public Buffer {
 public:
  CpuBuffer(MappedMemory memory, size_t size_bytes)
      : Buffer(memory.data(), size_bytes), memory_(std::move(memory)) {}
  int shared_file() const override { return memory_.file(); }

 private:
  MappedMemory memory_;
};

// What is enqueued on the CPU has been done.
class DoneEvent final : public Event {
 public:
  bool Done() const override { return true; }
  void Wait() const override {}
};

// One matrix a head.
class CpuHeads final : public PackedMatrix {
 public:
  explicit CpuHeads(std::vector<std::unique_ptr<PackedWeights>> matrices)
      : PackedMatrix(static_cast<int64_t>(matrices.size()) * matrices.front()->out_features(),
                     matrices.front()->in_features()),
        matrices_(std::move(matrices)) {}
  int64_t size_bytes() const override {
    int64_t bytes = 0;
    for (const auto& matrix : matrices_) bytes += matrix->size_bytes();
    return bytes;
  }
  const std::vector<std::unique_ptr<PackedWeights>>& matrices() const { return matrices_; }

 private:
  const std::vector<std::unique_ptr<PackedWeights>> matrices_;
};

void CheckHolds(const Buffer& buffer, int64_t floats) {
  BATON_CHECK_GE(buffer.size_bytes(), static_cast<size_t>(floats) * sizeof(float));
}

const CpuBatch& Cpu(const DeviceBatch& batch) { return static_cast<const CpuBatch&>(batch); }

class CpuBackend final : public Backend {
 public:
  CpuBackend(const Kernels& kernels, DType activation_dtype, bool dequantize, int thread_count)
      : kernels_(kernels),
        activation_dtype_(activation_dtype),
        dequantize_(dequantize),
        pool_(thread_count),
        matmul_(kernels_, pool_),
        kv_writer_(kernels_, pool_),
        attention_(kernels_, activation_dtype == DType::kBF16, pool_),
        experts_(kernels_, pool_, matmul_),
        recurrence_(kernels_, pool_) {}

  std::string Description() const override {
    return absl::StrCat("cpu (", kernels_.name, "), ", pool_.thread_count(), " threads, ",
                        backend::Name(activation_dtype_));
  }
  std::string Numerics() const override {
    const bool bf16 = activation_dtype_ == DType::kBF16;
    return absl::StrCat("cpu ", bf16 ? kernels_.numerics_bf16 : kernels_.numerics);
  }
  DType activation_dtype() const override { return activation_dtype_; }

  absl::Status Prepare(const StepLimits& limits) override {
    for (const AttentionHeads& heads : limits.heads()) {
      if (heads.kv_heads == 0 || heads.group() <= AttentionRunner::kMostGroup) continue;
      return MakeError(absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
                       absl::StrCat("--device cpu: num_attention_heads is ", heads.query_heads,
                                    " with ", heads.kv_heads, " KV heads, expected at most ",
                                    AttentionRunner::kMostGroup, " for each of them"));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) override;
  absl::StatusOr<std::unique_ptr<Buffer>> AllocateShared(size_t size_bytes) override;
  void CopyToDevice(void* device, const void* host, size_t size_bytes) override {
    if (size_bytes > 0) std::memcpy(device, host, size_bytes);
  }
  void CopyToHost(void* host, const void* device, size_t size_bytes) override {
    if (size_bytes > 0) std::memcpy(host, device, size_bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(
      absl::Span<const HostMatrix> stacked) override {
    return PackedWeights::Pack(stacked, activation_dtype_, pool_);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackQuantized(
      absl::Span<const QuantizedHostMatrix> stacked) override {
    if (!dequantize_ && QuantizedPanels::CanHold(stacked)) {
      return QuantizedPanels::Pack(stacked, pool_);
    }
    return PackedWeights::Pack(stacked, activation_dtype_, pool_);
  }
  bool packs_any() const override { return !dequantize_; }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackAny(
      absl::Span<const AnyHostMatrix> stacked) override;
  absl::StatusOr<std::unique_ptr<RopeTable>> MakeRopeTable(const RopeSpec& spec,
                                                           int max_positions) override;
  std::unique_ptr<DeviceBatch> Upload(const RaggedBatch& batch) override {
    return std::make_unique<CpuBatch>(batch);
  }
  std::unique_ptr<Event> RecordEvent() override { return std::make_unique<DoneEvent>(); }

  void Embed(const DeviceBatch& batch, const Tensor& table, float scale,
             const Tensor& out) override;
  void EmbedPacked(const DeviceBatch& batch, const PackedMatrix& table, float scale,
                   const Tensor& out) override;
  bool embeds_packed(DType elements) const override {
    return elements == activation_dtype_ || activation_dtype_ == DType::kF32;
  }
  void Norm(const NormArgs& args) override;
  void MatMul(const Tensor& x, const PackedMatrix& weight, const Buffer* bias,
              const Tensor& out) override;
  void RopeWriteKv(const DeviceBatch& batch, const KvPool& pool,
                   const RopeWriteArgs& args) override {
    kv_writer_.Write(Cpu(batch), pool, args);
  }
  void WriteLatentKv(const DeviceBatch& batch, const KvPool& pool,
                     const LatentWriteArgs& args) override {
    kv_writer_.Write(Cpu(batch), pool, args);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackHeads(
      absl::Span<const HostMatrix> heads) override;
  void MatMulHeads(const HeadProductArgs& args) override;
  void Attention(const DeviceBatch& batch, const KvPool& pool, const AttentionArgs& args) override;
  void ShortConv(const DeviceBatch& batch, const KvPool& pool, const ShortConvArgs& args) override {
    recurrence_.ShortConv(Cpu(batch), pool, args);
  }
  void GatedDelta(const DeviceBatch& batch, const KvPool& pool,
                  const GatedDeltaArgs& args) override {
    recurrence_.GatedDelta(Cpu(batch), pool, args);
  }
  void StateSpace(const DeviceBatch& batch, const KvPool& pool,
                  const StateSpaceArgs& args) override {
    recurrence_.StateSpace(Cpu(batch), pool, args);
  }
  void GatedNorm(const GatedNormArgs& args) override { recurrence_.Norm(args); }
  void GateBy(const Tensor& gate, const Tensor& by, GatedActivation activation,
              const Tensor& out) override;
  void GateOutput(const OutputGateArgs& args) override { recurrence_.Gate(args); }
  void Gate(const Tensor& gate_up, const GatedArgs& args, const Tensor& out) override;
  // PackedWeights keeps 16-bit values as they are and multiplies them in float32.
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackRouter(const HostMatrix& matrix) override {
    return PackedWeights::Pack({matrix}, DType::kF32, pool_);
  }
  void Experts(const ExpertsArgs& args) override { experts_.Run(args); }
  void ScaleLogits(const Tensor& logits, float scale, float cap) override;
  void GatherLogitRows(const DeviceBatch& batch, const Tensor& x, const Tensor& out) override;
  void CopyBlocks(const KvPool& pool, absl::Span<const int32_t> sources,
                  absl::Span<const int32_t> targets) override;

 private:
  const Kernels& kernels_;
  const DType activation_dtype_;
  const bool dequantize_;
  ThreadPool pool_;
  MatMulRunner matmul_;
  KvWriter kv_writer_;
  AttentionRunner attention_;
  ExpertsRunner experts_;
  RecurrenceRunner recurrence_;
  std::vector<MatMulProduct> products_;
};

absl::StatusOr<std::unique_ptr<Buffer>> CpuBackend::Allocate(size_t size_bytes) {
  BATON_ASSIGN_OR_RETURN(MappedMemory memory, MappedMemory::Map(size_bytes));
  return std::make_unique<CpuBuffer>(std::move(memory), size_bytes);
}

absl::StatusOr<std::unique_ptr<Buffer>> CpuBackend::AllocateShared(size_t size_bytes) {
  BATON_ASSIGN_OR_RETURN(MappedMemory memory, MappedMemory::MapShared(size_bytes));
  return std::make_unique<CpuBuffer>(std::move(memory), size_bytes);
}

// Whether panels can hold both.
bool SameForm(const AnyHostMatrix& a, const AnyHostMatrix& b) {
  if (a.index() != b.index()) return false;
  if (const auto* quantized = std::get_if<QuantizedHostMatrix>(&a)) {
    const auto& other = std::get<QuantizedHostMatrix>(b);
    return quantized->bits == other.bits && quantized->group_size == other.group_size &&
           quantized->scale_dtype == other.scale_dtype && quantized->fp4 == other.fp4;
  }
  if (const auto* blocks = std::get_if<SuperBlockHostMatrix>(&a)) {
    const auto& other = std::get<SuperBlockHostMatrix>(b);
    return blocks->bits == other.bits && blocks->super_columns == other.super_columns;
  }
  return true;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> CpuBackend::PackAny(
    absl::Span<const AnyHostMatrix> stacked) {
  BATON_CHECK(packs_any());
  std::vector<std::unique_ptr<PanelMatrix>> parts;
  for (size_t begin = 0, end; begin < stacked.size(); begin = end) {
    for (end = begin + 1; end < stacked.size() && SameForm(stacked[begin], stacked[end]);) ++end;
    const auto pack = [&]<class Matrix>(const Matrix&) -> absl::Status {
      std::vector<Matrix> same;
      for (size_t i = begin; i < end; ++i) same.push_back(std::get<Matrix>(stacked[i]));
      if constexpr (std::is_same_v<Matrix, SuperBlockHostMatrix>) {
        BATON_ASSIGN_OR_RETURN(parts.emplace_back(), QuantizedPanels::Pack(same, pool_));
      } else if constexpr (std::is_same_v<Matrix, QuantizedHostMatrix>) {
        BATON_CHECK(QuantizedPanels::CanHold(same));
        BATON_ASSIGN_OR_RETURN(parts.emplace_back(), QuantizedPanels::Pack(same, pool_));
      } else {
        BATON_ASSIGN_OR_RETURN(parts.emplace_back(),
                               PackedWeights::Pack(same, activation_dtype_, pool_));
      }
      return absl::OkStatus();
    };
    BATON_RETURN_IF_ERROR(std::visit(pack, stacked[begin]));
  }
  if (parts.size() == 1) return std::move(parts.front());
  return std::make_unique<StackedMatrix>(std::move(parts));
}

absl::StatusOr<std::unique_ptr<RopeTable>> CpuBackend::MakeRopeTable(const RopeSpec& spec,
                                                                     int max_positions) {
  auto table = std::make_unique<CpuRopeTable>();
  const int half = static_cast<int>(spec.inverse_frequencies.size());
  table->half = half;
  table->positions = max_positions;
  table->cosine.resize(int64_t{max_positions} * half);
  table->sine.resize(table->cosine.size());
  ForRows(pool_, max_positions, half * 16, [&](int64_t position) {
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * spec.inverse_frequencies[i];
      table->cosine[position * half + i] = static_cast<float>(std::cos(angle) * spec.factor);
      table->sine[position * half + i] = static_cast<float>(std::sin(angle) * spec.factor);
    }
  });
  if (spec.query_beta == 0) return table;
  table->query_scale.resize(max_positions);
  for (int position = 0; position < max_positions; ++position) {
    table->query_scale[position] = spec.QueryScale(position);
  }
  return table;
}

void CpuBackend::Embed(const DeviceBatch& batch, const Tensor& table, float scale,
                       const Tensor& out) {
  const CpuBatch& cpu = Cpu(batch);
  CheckF32(out);
  CheckShape(out, cpu.rows(), table.cols);
  ForRows(pool_, cpu.rows(), out.cols, [&](int64_t row) {
    const int32_t token = cpu.tokens()[row];
    BATON_CHECK(token >= 0 && token < table.rows) << "token " << token;
    float* to = At<float>(out, row);
    kernels_.to_f32(RowOf(table, token), ElementOf(table.dtype), out.cols, to);
    if (scale != 1) kernels_.scale(to, scale, 0, out.cols);
  });
}

void CpuBackend::EmbedPacked(const DeviceBatch& batch, const PackedMatrix& table, float scale,
                             const Tensor& out) {
  const CpuBatch& cpu = Cpu(batch);
  CheckF32(out);
  CheckShape(out, cpu.rows(), table.in_features());
  const auto& matrix = static_cast<const CpuMatrix&>(table);
  BATON_CHECK(matrix.form() != CpuMatrix::Form::kStacked);
  const auto& panels = static_cast<const PanelMatrix&>(matrix);
  // A table would have values of few bits as activations.
  const bool rounds =
      matrix.form() == CpuMatrix::Form::kQuantized && activation_dtype_ != DType::kF32;
  ForRows(pool_, cpu.rows(), out.cols, [&](int64_t row) {
    float* to = At<float>(out, row);
    panels.ReadRow(cpu.tokens()[row], to);
    if (rounds) {
      std::vector<uint16_t> rounded(static_cast<size_t>(out.cols));
      kernels_.from_f32(to, ElementOf(activation_dtype_), out.cols, rounded.data());
      kernels_.to_f32(rounded.data(), ElementOf(activation_dtype_), out.cols, to);
    }
    if (scale != 1) kernels_.scale(to, scale, 0, out.cols);
  });
}

void CpuBackend::Norm(const NormArgs& args) {
  const Tensor& residual = args.residual;
  CheckF32(residual);
  CheckShape(args.out, residual.rows, residual.cols);
  if (args.weight != nullptr) CheckHolds(*args.weight, residual.cols);
  const bool adds = args.delta.data != nullptr;
  if (adds) {
    CheckF32(args.delta);
    CheckShape(args.delta, residual.rows, residual.cols);
    if (args.delta_weight != nullptr) CheckHolds(*args.delta_weight, residual.cols);
  }
  const auto floats = [](const Buffer* buffer) {
    return buffer == nullptr ? nullptr : static_cast<const float*>(buffer->data());
  };
  ForRows(pool_, residual.rows, residual.cols, [&](int64_t row) {
    kernels_.norm({.x = At<float>(residual, row),
                   .delta = adds ? At<float>(args.delta, row) : nullptr,
                   .delta_scale = args.delta_scale,
                   .delta_weight = adds ? floats(args.delta_weight) : nullptr,
                   .weight = floats(args.weight),
                   .eps = args.eps,
                   .n = residual.cols,
                   .element = ElementOf(args.out.dtype),
                   .y = RowOf(args.out, row)});
  });
}

void CpuBackend::MatMul(const Tensor& x, const PackedMatrix& weight, const Buffer* bias,
                        const Tensor& out) {
  BATON_CHECK(x.dtype == activation_dtype_);
  BATON_CHECK_EQ(x.cols, weight.in_features());
  CheckF32(out);
  CheckShape(out, x.rows, weight.out_features());
  if (bias != nullptr) CheckHolds(*bias, out.cols);
  matmul_.Run(x, static_cast<const CpuMatrix&>(weight),
              bias == nullptr ? nullptr : static_cast<const float*>(bias->data()), out);
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> CpuBackend::PackHeads(
    absl::Span<const HostMatrix> heads) {
  std::vector<std::unique_ptr<PackedWeights>> packed;
  for (const HostMatrix& head : heads) {
    BATON_ASSIGN_OR_RETURN(packed.emplace_back(),
                           PackedWeights::Pack({head}, activation_dtype_, pool_));
  }
  return std::make_unique<CpuHeads>(std::move(packed));
}

void CpuBackend::MatMulHeads(const HeadProductArgs& args) {
  const auto& heads = static_cast<const CpuHeads&>(*args.heads).matrices();
  BATON_CHECK(args.x.dtype == activation_dtype_);
  CheckF32(args.out);
  const int64_t out_features = heads.front()->out_features(), in = heads.front()->in_features();
  CheckShape(args.x, args.out.rows, static_cast<int64_t>(heads.size()) * in);
  BATON_CHECK_LE(static_cast<int64_t>(heads.size()) * args.out_stride, args.out.cols);
  BATON_CHECK_LE(out_features, args.out_stride);
  products_.clear();
  Tensor x = args.x, out = args.out;
  x.cols = in;
  out.cols = out_features;
  for (const auto& head : heads) {
    products_.push_back({x, head.get(), nullptr, out});
    x.data = static_cast<std::byte*>(x.data) + in * static_cast<int64_t>(SizeOf(x.dtype));
    out.data = static_cast<float*>(out.data) + args.out_stride;
  }
  matmul_.Run(products_);
}

void CpuBackend::Attention(const DeviceBatch& batch, const KvPool& pool,
                           const AttentionArgs& args) {
  const CpuBatch& cpu = Cpu(batch);
  CheckF32(args.q);
  CheckShape(args.q, cpu.rows(), int64_t{args.query_heads} * pool.head_dim);
  CheckShape(args.out, cpu.rows(), int64_t{args.query_heads} * pool.value_dim());
  attention_.Run(cpu, pool, args);
}

void CpuBackend::Gate(const Tensor& gate_up, const GatedArgs& args, const Tensor& out) {
  CheckF32(gate_up);
  const int parts = GatedParts(args.activation);
  CheckShape(gate_up, out.rows, parts * out.cols);
  ForRows(pool_, out.rows, out.cols, [&](int64_t row) {
    const float* gate = At<float>(gate_up, row);
    kernels_.gate(gate, gate + (parts - 1) * out.cols, static_cast<Activation>(args.activation),
                  args.scale, out.cols, ElementOf(out.dtype), RowOf(out, row));
  });
}

void CpuBackend::GateBy(const Tensor& gate, const Tensor& by, GatedActivation activation,
                        const Tensor& out) {
  for (const Tensor* factor : {&gate, &by}) {
    CheckF32(*factor);
    CheckShape(*factor, out.rows, out.cols);
  }
  ForRows(pool_, out.rows, out.cols, [&](int64_t row) {
    kernels_.gate(At<float>(gate, row), At<float>(by, row), static_cast<Activation>(activation), 1,
                  out.cols, ElementOf(out.dtype), RowOf(out, row));
  });
}

void CpuBackend::ScaleLogits(const Tensor& logits, float scale, float cap) {
  CheckF32(logits);
  ForRows(pool_, logits.rows, logits.cols,
          [&](int64_t row) { kernels_.scale(At<float>(logits, row), scale, cap, logits.cols); });
}

void CpuBackend::GatherLogitRows(const DeviceBatch& batch, const Tensor& x, const Tensor& out) {
  const CpuBatch& cpu = Cpu(batch);
  CheckF32(x);
  CheckF32(out);
  CheckShape(x, cpu.rows(), out.cols);
  CheckShape(out, static_cast<int64_t>(cpu.logit_rows().size()), x.cols);
  for (int64_t row = 0; row < out.rows; ++row) {
    std::memcpy(At<float>(out, row), At<float>(x, cpu.logit_rows()[row]), out.cols * sizeof(float));
  }
}

void CpuBackend::CopyBlocks(const KvPool& pool, absl::Span<const int32_t> sources,
                            absl::Span<const int32_t> targets) {
  BATON_CHECK_EQ(sources.size(), targets.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    BATON_CHECK(sources[i] >= 0 && sources[i] < pool.block_count) << "block " << sources[i];
    BATON_CHECK(targets[i] >= 0 && targets[i] < pool.block_count) << "block " << targets[i];
    std::memcpy(pool.base + targets[i] * pool.block_stride_bytes,
                pool.base + sources[i] * pool.block_stride_bytes, pool.block_stride_bytes);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options) {
  return MakeCpuBackend(options, KernelsOf(BestIsa()));
}

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options,
                                                        const Kernels& kernels) {
  if (options.thread_count < 0) {
    return InvalidField("BAD_OPTION", "thread_count", "thread_count is below 0");
  }
  if (options.compute == BackendOptions::Compute::kF16) {
    return InvalidField("BAD_OPTION", "compute", "float16 needs a GPU: no CPU here multiplies it");
  }
  const bool multiplies_bf16 = kernels.matmul_bf16 != nullptr;
  if (options.compute == BackendOptions::Compute::kBF16 && !multiplies_bf16) {
    return InvalidField(
        "BAD_OPTION", "compute",
        absl::StrCat("bfloat16 needs avx512_bf16 or amx; this CPU has ", kernels.name));
  }
  const bool bf16 = multiplies_bf16 && options.compute != BackendOptions::Compute::kF32;
  return std::make_unique<CpuBackend>(
      kernels, bf16 ? DType::kBF16 : DType::kF32, options.dequantize_weights,
      options.thread_count > 0 ? options.thread_count : UsableCores());
}

}  // namespace baton::backend
