#include "common/backend/cuda/cuda_backend.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/attention_operations.h"
#include "common/backend/cuda/expert_operations.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/kernels/elementwise.h"
#include "common/backend/cuda/kv_operations.h"
#include "common/backend/cuda/matrices/device_weights.h"
#include "common/backend/cuda/matrices/expert_group.h"
#include "common/backend/cuda/matrices/gated_product.h"
#include "common/backend/cuda/matrices/matrix_memory.h"
#include "common/backend/cuda/matrices/product_uses.h"
#include "common/backend/cuda/matrices/quantized_matrix.h"
#include "common/backend/cuda/nccl/nccl_links.h"
#include "common/backend/cuda/plan/workspace_sizes.h"
#include "common/backend/cuda/product_operations.h"
#include "common/backend/cuda/recurrence_operations.h"
#include "common/backend/cuda/row_operations.h"
#include "common/backend/cuda/runtime/arena.h"
#include "common/backend/cuda/runtime/arena_buffer.h"
#include "common/backend/cuda/runtime/device_share.h"
#include "common/backend/cuda/runtime/host_staging.h"
#include "common/backend/cuda/runtime/kv_copier.h"
#include "common/backend/cuda/sampling/device_sampler.h"
#include "common/backend/cuda/steps/batch_upload.h"
#include "common/backend/cuda/steps/state_spots.h"
#include "common/backend/cuda/steps/step_recorder.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kStagingBytes = size_t{8} << 20;

const CudaBatch& Cuda(const DeviceBatch& batch) { return static_cast<const CudaBatch&>(batch); }

class CudaBackend final : public Backend {
 public:
  CudaBackend(std::unique_ptr<Runtime> runtime, std::unique_ptr<Products> products,
              NcclLibrary* nccl, DType dtype, std::byte* base, size_t arena_bytes)
      : runtime_(std::move(runtime)),
        products_(std::move(products)),
        nccl_(nccl),
        activation_dtype_(dtype),
        base_(base),
        arena_(arena_bytes),
        stream_(runtime_->MakeStream()),
        host_packer_(dtype, std::make_unique<PinnedMatrixMemory>(*runtime_)) {}
  ~CudaBackend() override { runtime_->Synchronize(stream_); }

  absl::Status Initialize();

  std::string Description() const override { return Describe(/*memory=*/true); }
  std::string Kind() const override { return Describe(/*memory=*/false); }
  std::string Numerics() const override {
    if (products_ != nullptr) return "";
    return absl::StrCat("cuda sm_", runtime_->properties().compute_capability);
  }
  DType activation_dtype() const override { return activation_dtype_; }
  absl::Status Prepare(const StepLimits& limits) override;
  size_t WorkspaceBytes(const StepLimits& limits) const override;
  std::optional<size_t> FreeBytes() const override { return arena_.LargestFree(); }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) override;
  void CopyToDevice(void* device, const void* host, size_t size_bytes) override {
    staging_->CopyToDevice(device, host, size_bytes);
  }
  void CopyToHost(void* host, const void* device, size_t size_bytes) override {
    staging_->CopyToHost(host, device, size_bytes);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(
      absl::Span<const HostMatrix> stacked) override {
    return packer_->Pack(stacked);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackQuantized(
      absl::Span<const QuantizedHostMatrix> stacked) override {
    return packer_->PackQuantized(stacked);
  }
  MatrixPacker* host_packer() override { return &host_packer_; }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackRouter(const HostMatrix& matrix) override {
    return CudaRouter::Make(matrix, *this, *staging_);
  }
  absl::StatusOr<std::unique_ptr<ExpertGroup>> GroupExperts(std::vector<ExpertMatrices> experts,
                                                            const ExpertBiases& biases) override {
    return CudaExpertGroup::Make(std::move(experts), biases, experts_.fetched, *this, *staging_);
  }
  bool experts_at_once() const override { return true; }
  void Experts(const ExpertsArgs& args) override {
    const CudaBatch* const batch = args.batch == nullptr ? nullptr : &Cuda(*args.batch);
    BATON_CHECK(batch == nullptr || batch->rows == args.x.rows);
    EnqueueExperts(args, batch == nullptr ? nullptr : batch->d_positions, experts_,
                   activation_dtype_, stream_);
  }
  absl::StatusOr<std::unique_ptr<RopeTable>> MakeRopeTable(const RopeSpec& spec,
                                                           int max_positions) override {
    return CudaRopeTable::Make(spec, max_positions, *this, *staging_);
  }
  void Tune(absl::Span<const MatMulUse> products) override {
    if (products_ == nullptr) return;
    BATON_CHECK(upload_ != nullptr) << "Prepare comes first";
    products_->Tune(UsesOf(products, quantized_, *staging_), activation_dtype_, stream_);
  }
  std::unique_ptr<DeviceBatch> Upload(const RaggedBatch& batch) override {
    BATON_CHECK(upload_ != nullptr) << "Prepare comes first";
    state_.draws = nullptr;
    std::unique_ptr<CudaBatch> uploaded = upload_->Upload(batch);
    if (!batch.drawn.empty()) state_.drawn_tokens = uploaded->d_tokens;
    return uploaded;
  }
  std::unique_ptr<StepRecorder> MakeStepRecorder() override {
    BATON_CHECK(upload_ != nullptr) << "Prepare comes first";
    return std::make_unique<CudaStepRecorder>(limits_, *upload_, state_, *runtime_, stream_);
  }
  std::unique_ptr<Event> RecordEvent() override { return runtime_->Record(stream_); }
  std::unique_ptr<KvCopier> MakeKvCopier(const KvPool& pool) override;
  absl::StatusOr<std::shared_ptr<DeviceLinks>> MakeDeviceLinks(const KvPool& pool) override {
    if (nccl_ == nullptr) return Backend::MakeDeviceLinks(pool);
    BATON_ASSIGN_OR_RETURN(std::shared_ptr<DeviceLinks> links,
                           NcclLinks::Make(pool, *runtime_, *nccl_));
    return links;
  }

  void Embed(const DeviceBatch& batch, const Tensor& table, float scale,
             const Tensor& out) override;
  void Norm(const NormArgs& args) override { EnqueueNorm(args, stream_); }
  void MatMul(const Tensor& x, const PackedMatrix& weight, const Buffer* bias,
              const Tensor& out) override {
    EnqueueMatMul(x, weight, bias, out, means());
  }
  void NormMatMul(const NormArgs& norm, const PackedMatrix& weight, const Buffer* bias,
                  const Tensor& out) override {
    const bool fused = EnqueueNormMatMul(norm, weight, bias, out, means());
    if (!fused) Backend::NormMatMul(norm, weight, bias, out);
  }
  bool adds_products(const PackedMatrix& weight, int64_t rows) const override {
    return AddsProducts(weight, rows, means());
  }
  void MatMulAdd(const Tensor& x, const PackedMatrix& weight, const Buffer* bias, float scale,
                 const Tensor& residual) override {
    EnqueueMatMulAdd(x, weight, bias, scale, residual, means());
  }
  void RopeWriteKv(const DeviceBatch& batch, const KvPool& pool,
                   const RopeWriteArgs& args) override;
  void WriteLatentKv(const DeviceBatch& batch, const KvPool& pool,
                     const LatentWriteArgs& args) override {
    const CudaBatch& cuda = Cuda(batch);
    CheckPool(cuda, pool, args.layer);
    AskPositions(cuda, args.rope);
    EnqueueLatentWrite(cuda, pool, args, stream_);
  }
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackHeads(
      absl::Span<const HostMatrix> heads) override {
    return Pack(heads);
  }
  void MatMulHeads(const HeadProductArgs& args) override {
    EnqueueHeadProducts(args, activation_dtype_, stream_);
  }
  void Attention(const DeviceBatch& batch, const KvPool& pool, const AttentionArgs& args) override {
    CheckPool(Cuda(batch), pool, args.layer);
    EnqueueAttention(Cuda(batch), pool, args, activation_dtype_, attention_, runtime_->properties(),
                     stream_);
  }
  void RopeWriteAttend(const DeviceBatch& batch, const KvPool& pool, const RopeWriteArgs& write,
                       const AttentionArgs& args) override;
  void ShortConv(const DeviceBatch& batch, const KvPool& pool, const ShortConvArgs& args) override {
    CheckStates(Cuda(batch), pool);
    EnqueueShortConv(Cuda(batch), pool, *state_spots_, args, stream_);
  }
  void GatedDelta(const DeviceBatch& batch, const KvPool& pool,
                  const GatedDeltaArgs& args) override {
    CheckStates(Cuda(batch), pool);
    EnqueueGatedDelta(Cuda(batch), pool, *state_spots_, args, stream_);
  }
  void StateSpace(const DeviceBatch& batch, const KvPool& pool,
                  const StateSpaceArgs& args) override {
    CheckStates(Cuda(batch), pool);
    EnqueueStateSpace(Cuda(batch), pool, *state_spots_, args, stream_);
  }
  void GatedNorm(const GatedNormArgs& args) override { EnqueueGatedNorm(args, stream_); }
  void GateOutput(const OutputGateArgs& args) override { EnqueueGateOutput(args, stream_); }
  void Gate(const Tensor& gate_up, const GatedArgs& args, const Tensor& out) override {
    EnqueueGate(gate_up, args, out, stream_);
  }
  void GateBy(const Tensor& gate, const Tensor& by, GatedActivation activation,
              const Tensor& out) override {
    EnqueueGateBy(gate, by, activation, out, stream_);
  }
  bool needs_gate_up() const override { return products_ != nullptr; }
  void MatMulGated(const Tensor& x, const PackedMatrix& gate_up, const GatedArgs& args,
                   const Tensor& scratch, const Tensor& out) override;
  void NormMatMulGated(const NormArgs& norm, const PackedMatrix& gate_up, const GatedArgs& args,
                       const Tensor& scratch, const Tensor& out) override {
    const bool fused = EnqueueNormMatMulGated(norm, gate_up, args, out, means());
    if (!fused) Backend::NormMatMulGated(norm, gate_up, args, scratch, out);
  }
  void ScaleLogits(const Tensor& logits, float scale, float cap) override {
    EnqueueScaleLogits(logits, scale, cap, stream_);
  }
  void GatherLogitRows(const DeviceBatch& batch, const Tensor& x, const Tensor& out) override;
  bool samples_on_device() const override { return true; }
  void EnqueueSample(const Tensor& logits, int64_t token_count,
                     absl::Span<const SampleRow> rows) override {
    BATON_CHECK(sampler_ != nullptr) << "Prepare comes first";
    // Another part of the rows, or those of an earlier step, have another place.
    const bool came_along = state_.draws != nullptr && state_.draws == rows.data();
    sampler_->Enqueue(logits, token_count, rows, state_.drawn_tokens,
                      came_along ? &upload_->draws() : nullptr, state_.d_draws);
    state_.draws = nullptr;
  }
  void CollectSample(absl::Span<SampleOutcome> outcomes) override { sampler_->Collect(outcomes); }
  void CopyBlocks(const KvPool& pool, absl::Span<const int32_t> sources,
                  absl::Span<const int32_t> targets) override;

 private:
  std::string Describe(bool memory) const;
  WorkspaceSizes SizesFor(const StepLimits& limits) const {
    return WorkspaceSizes::For(limits, activation_dtype_,
                               products_ == nullptr ? 0 : products_->WorkspaceBytes());
  }
  ProductMeans means() const { return {activation_dtype_, products_.get(), quantized_, stream_}; }
  // An operation's, which a step that repeats it will hold its batch to.
  void Ask(const CudaBatch& batch, const BatchBounds& bounds) {
    bounds.Check(batch);
    state_.bounds.Narrow(bounds);
  }
  void AskPositions(const CudaBatch& batch, const RopeTable* rope) {
    if (rope == nullptr) return;
    Ask(batch, {.positions = static_cast<const CudaRopeTable&>(*rope).positions});
  }
  void CheckPool(const CudaBatch& batch, const KvPool& pool, int layer);
  void CheckStates(const CudaBatch& batch, const KvPool& pool) {
    Ask(batch, {.blocks = pool.block_count});
    BATON_CHECK_EQ(pool.state_tables, limits_.state_tables);
  }
  // Part of the arena that lives as long as the backend.
  absl::StatusOr<void*> Keep(size_t size_bytes);

  // The order matters: what is enqueued ends before memory goes.
  const std::unique_ptr<Runtime> runtime_;
  const std::unique_ptr<Products> products_;
  NcclLibrary* const nccl_;  // null: this device is not linked with others
  const DType activation_dtype_;
  std::byte* const base_;
  Arena arena_;
  const Stream stream_;
  std::unique_ptr<HostStaging> staging_;
  std::optional<CudaMatrixPacker> packer_;
  CudaMatrixPacker host_packer_;
  std::vector<std::unique_ptr<Buffer>> kept_;

  StepLimits limits_;
  std::unique_ptr<BatchUpload> upload_;
  StepState state_;
  std::unique_ptr<DeviceSampler> sampler_;
  std::optional<StateSpots> state_spots_;
  std::unique_ptr<Buffer> copier_staging_;
  AttentionWorkspace attention_;
  BlockPair* copied_blocks_ = nullptr;  // [kCopiedBlocksAtOnce]
  QuantizedWorkspaces quantized_;
  ExpertWorkspace experts_;
};

absl::Status CudaBackend::Initialize() {
  BATON_ASSIGN_OR_RETURN(staging_, HostStaging::Make(kStagingBytes, *runtime_, stream_));
  packer_.emplace(activation_dtype_, std::make_unique<DeviceMatrixMemory>(*this, *staging_));
  return absl::OkStatus();
}

std::string CudaBackend::Describe(bool memory) const {
  const DeviceProperties& d = runtime_->properties();
  return absl::StrCat(
      "cuda (", d.name, ", compute capability ", d.compute_capability / 10, ".",
      d.compute_capability % 10, ", ", d.multiprocessors, " multiprocessors), ",
      memory ? absl::StrCat(arena_.size_bytes() >> 20, " of ", d.total_bytes >> 20, " MiB, ") : "",
      backend::Name(activation_dtype_), products_ == nullptr ? ", deterministic" : "");
}

size_t CudaBackend::WorkspaceBytes(const StepLimits& limits) const {
  return SizesFor(limits).total();
}

absl::Status CudaBackend::Prepare(const StepLimits& limits) {
  BATON_CHECK(upload_ == nullptr) << "Prepare comes once";
  BATON_RETURN_IF_ERROR(CheckSupported(limits));
  limits_ = limits;
  const WorkspaceSizes sizes = SizesFor(limits);
  BATON_ASSIGN_OR_RETURN(void* const upload, Keep(sizes.upload));
  BATON_ASSIGN_OR_RETURN(upload_,
                         BatchUpload::Make(limits, sizes.rooms, upload, *runtime_, stream_));
  BATON_ASSIGN_OR_RETURN(void* const partials, Keep(sizes.partials));
  BATON_ASSIGN_OR_RETURN(void* const counters, Keep(sizes.counters));
  BATON_ASSIGN_OR_RETURN(void* const totals, Keep(sizes.totals));
  BATON_ASSIGN_OR_RETURN(void* const copied_blocks, Keep(sizes.copied_blocks));
  BATON_ASSIGN_OR_RETURN(copier_staging_, Allocate(sizes.copier));
  BATON_ASSIGN_OR_RETURN(void* const sampler, Keep(sizes.sampler));
  BATON_ASSIGN_OR_RETURN(sampler_, DeviceSampler::Make(limits, sampler, *runtime_, stream_));
  if (products_ != nullptr) {
    BATON_ASSIGN_OR_RETURN(void* const products, Keep(sizes.products));
    products_->SetWorkspace(products);
  }
  quantized_ = {sizes.quantized, runtime_->properties().kernel_capability};
  BATON_ASSIGN_OR_RETURN(quantized_.dequantized, Keep(sizes.quantized.dequantized));
  BATON_ASSIGN_OR_RETURN(quantized_.reordered, Keep(sizes.quantized.reordered));
  BATON_ASSIGN_OR_RETURN(void* const experts, Keep(sizes.experts));
  experts_ = ExpertWorkspace::In(experts, limits);
  BATON_ASSIGN_OR_RETURN(void* const spots, Keep(sizes.state_spots));
  state_spots_.emplace(static_cast<SpotEntry*>(spots), limits.state_spots, *staging_);
  attention_ = {static_cast<float*>(partials), static_cast<unsigned*>(counters),
                static_cast<float*>(totals)};
  copied_blocks_ = static_cast<BlockPair*>(copied_blocks);
  return absl::OkStatus();
}

absl::StatusOr<void*> CudaBackend::Keep(size_t size_bytes) {
  if (size_bytes == 0) return nullptr;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer, Allocate(size_bytes));
  kept_.push_back(std::move(buffer));
  return kept_.back()->data();
}

absl::StatusOr<std::unique_ptr<Buffer>> CudaBackend::Allocate(size_t size_bytes) {
  const std::optional<size_t> offset = arena_.Take(size_bytes);
  if (!offset) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "DEVICE_MEMORY",
        absl::StrCat(size_bytes, " bytes asked for, ", arena_.LargestFree(), " are free of the ",
                     arena_.size_bytes(), " that --gpu-memory-utilization leaves"));
  }
  auto buffer = std::make_unique<ArenaBuffer>(arena_, base_, *offset, size_bytes);
  runtime_->Zero(buffer->data(), size_bytes, stream_);
  return buffer;
}

void CudaBackend::Embed(const DeviceBatch& batch, const Tensor& table, float scale,
                        const Tensor& out) {
  const CudaBatch& cuda = Cuda(batch);
  CheckRows(table, table.rows, out.cols);
  CheckRows(out, cuda.rows, out.cols);
  Ask(cuda, {.tokens = table.rows});
  LaunchGather({.table = table.data,
                .table_stride = table.row_stride,
                .row_of = cuda.d_tokens,
                .out = F32(out),
                .out_stride = out.row_stride,
                .cols = static_cast<int>(out.cols),
                .drawn = cuda.d_drawn,
                .results = sampler_->results(),
                .kept = cuda.d_tokens,
                .table_rows = static_cast<int32_t>(table.rows),
                .scale = scale},
               table.dtype, cuda.rows, stream_);
}

void CudaBackend::CheckPool(const CudaBatch& batch, const KvPool& pool, int layer) {
  Ask(batch, {.blocks = pool.block_count});
  BATON_CHECK_EQ(batch.block_tokens, pool.block_tokens);
  BATON_CHECK(pool.heads.empty()) << "KvPool::WithHeads";
  BATON_CHECK_EQ(pool.latent_dim, limits_.latent_dim);
  BATON_CHECK(pool.dtype == activation_dtype_);
  BATON_CHECK(pool.format == limits_.kv_format);
  BATON_CHECK_EQ(pool.tables, limits_.kv_tables);
  BATON_CHECK_EQ(pool.state_tables, limits_.state_tables);
  BATON_CHECK_LT(pool.block_stride_bytes, int64_t{1} << 32);
  BATON_CHECK(layer >= 0 && layer < limits_.layers);
}

void CudaBackend::RopeWriteKv(const DeviceBatch& batch, const KvPool& pool,
                              const RopeWriteArgs& args) {
  const CudaBatch& cuda = Cuda(batch);
  CheckPool(cuda, pool, args.layer);
  AskPositions(cuda, args.rope);
  EnqueueRopeWrite(cuda, pool, args, stream_);
}

void CudaBackend::RopeWriteAttend(const DeviceBatch& batch, const KvPool& pool,
                                  const RopeWriteArgs& write, const AttentionArgs& args) {
  const CudaBatch& cuda = Cuda(batch);
  CheckPool(cuda, pool, args.layer);
  if (!FusesRopeWrite(cuda, pool, args)) return Backend::RopeWriteAttend(batch, pool, write, args);
  AskPositions(cuda, write.rope);
  EnqueueRopeWriteAttend(cuda, pool, write, args, activation_dtype_, attention_,
                         runtime_->properties(), stream_);
}

void CudaBackend::MatMulGated(const Tensor& x, const PackedMatrix& gate_up, const GatedArgs& args,
                              const Tensor& scratch, const Tensor& out) {
  CheckRows(x, x.rows, gate_up.in_features());
  CheckRows(out, x.rows, gate_up.out_features() / GatedParts(args.activation));
  const bool fused = MultiplyGated(x, gate_up, args, out, activation_dtype_, products_ != nullptr,
                                   quantized_, stream_);
  if (!fused) Backend::MatMulGated(x, gate_up, args, scratch, out);
}

void CudaBackend::GatherLogitRows(const DeviceBatch& batch, const Tensor& x, const Tensor& out) {
  const CudaBatch& cuda = Cuda(batch);
  CheckRows(x, cuda.rows, out.cols);
  CheckRows(out, cuda.logit_count, out.cols);
  LaunchGather({.table = F32(x),
                .table_stride = x.row_stride,
                .row_of = cuda.d_logit_rows,
                .out = F32(out),
                .out_stride = out.row_stride,
                .cols = static_cast<int>(out.cols)},
               DType::kF32, cuda.logit_count, stream_);
}

void CudaBackend::CopyBlocks(const KvPool& pool, absl::Span<const int32_t> sources,
                             absl::Span<const int32_t> targets) {
  BATON_CHECK_EQ(sources.size(), targets.size());
  BATON_CHECK(copied_blocks_ != nullptr) << "Prepare comes first";
  std::vector<BlockPair> pairs(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) {
    pairs[i] = {sources[i], targets[i]};
    BATON_CHECK(sources[i] >= 0 && sources[i] < pool.block_count) << "block " << sources[i];
    BATON_CHECK(targets[i] >= 0 && targets[i] < pool.block_count) << "block " << targets[i];
  }
  for (size_t first = 0; first < pairs.size(); first += kCopiedBlocksAtOnce) {
    const size_t count = std::min<size_t>(kCopiedBlocksAtOnce, pairs.size() - first);
    CopyToDevice(copied_blocks_, &pairs[first], count * sizeof(BlockPair));
    LaunchCopyBlocks({.base = pool.base,
                      .block_stride_bytes = pool.block_stride_bytes,
                      .block_bytes = pool.block_stride_bytes,
                      .pairs = copied_blocks_},
                     static_cast<int>(count), stream_);
  }
}

std::unique_ptr<KvCopier> CudaBackend::MakeKvCopier(const KvPool& pool) {
  BATON_CHECK(copier_staging_ != nullptr) << "Prepare comes first, and one copier";
  const size_t chunk_bytes = static_cast<size_t>(pool.layer_stride_bytes);
  BATON_CHECK_LE(CudaKvCopier::DeviceBytes(chunk_bytes), copier_staging_->size_bytes());
  auto copier =
      CudaKvCopier::Make(pool, std::move(copier_staging_), *runtime_, {base_, arena_.size_bytes()});
  BATON_CHECK(copier.ok()) << copier.status();
  // The pool and the staging are zeroed on the compute stream, which the copier does not wait for.
  runtime_->Synchronize(stream_);
  return *std::move(copier);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeBackendOn(std::unique_ptr<Runtime> runtime,
                                                       std::unique_ptr<Products> products,
                                                       const BackendOptions& options,
                                                       NcclLibrary* nccl) {
  BATON_ASSIGN_OR_RETURN(const DeviceShare share, ShareOf(runtime->properties(), options));
  BATON_ASSIGN_OR_RETURN(void* const base, runtime->AllocateDevice(share.arena_bytes));
  auto backend =
      std::make_unique<CudaBackend>(std::move(runtime), std::move(products), nccl, share.dtype,
                                    static_cast<std::byte*>(base), share.arena_bytes);
  BATON_RETURN_IF_ERROR(backend->Initialize());
  return backend;
}

}  // namespace baton::backend::cuda
