// What is the CUDA backend's alone: its choice of types, its share of memory, other people's
// products, and steps that are enqueued long before they run. Its operations: backend_test.cc.
#include "common/backend/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/backend/cuda/runtime/arena.h"
#include "common/base/error.h"
#include "tests/common/backend/cuda/delayed_runtime.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

using Compute = BackendOptions::Compute;

constexpr size_t kDeviceBytes = size_t{48} << 20;

absl::StatusOr<std::unique_ptr<Backend>> MakeOn(int compute_capability,
                                                const BackendOptions& options) {
  return MakeBackendOn(MakeEmulatedRuntime(compute_capability, kDeviceBytes), nullptr, options);
}

TEST(CudaBackendTest, ComputesInWhatTheDeviceMultiplies) {
  EXPECT_EQ(MakeOn(75, {}).value()->activation_dtype(), DType::kF16);
  EXPECT_EQ(MakeOn(80, {}).value()->activation_dtype(), DType::kBF16);
  EXPECT_EQ(MakeOn(90, {.compute = Compute::kF16}).value()->activation_dtype(), DType::kF16);
  EXPECT_EQ(MakeOn(86, {.compute = Compute::kBF16}).value()->activation_dtype(), DType::kBF16);
  EXPECT_EQ(MakeOn(90, {.cuda = {.as_t4 = true}}).value()->activation_dtype(), DType::kF16);
  for (const absl::Status& status :
       {MakeOn(75, {.compute = Compute::kBF16}).status(),
        MakeOn(90, {.compute = Compute::kBF16, .cuda = {.as_t4 = true}}).status(),
        MakeOn(90, {.compute = Compute::kF32}).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ErrorReason(status), "BAD_OPTION");
    EXPECT_NE(status.message().find("--dtype"), std::string::npos) << status;
  }
}

// A device of which others use a part.
class SharedDevice final : public Runtime {
 public:
  explicit SharedDevice(size_t used) : device_(MakeEmulatedRuntime(75, kDeviceBytes)) {
    properties_ = device_->properties();
    properties_.free_bytes -= used;
  }
  const DeviceProperties& properties() const override { return properties_; }
  absl::StatusOr<void*> AllocateDevice(size_t size) override {
    return device_->AllocateDevice(size);
  }
  absl::StatusOr<void*> AllocatePinned(size_t size) override {
    return device_->AllocatePinned(size);
  }
  Stream MakeStream() override { return device_->MakeStream(); }
  void CopyToDevice(void* to, const void* from, size_t size, Stream stream) override {
    device_->CopyToDevice(to, from, size, stream);
  }
  void CopyToHost(void* to, const void* from, size_t size, Stream stream) override {
    device_->CopyToHost(to, from, size, stream);
  }
  void Zero(void* device, size_t size, Stream stream) override {
    device_->Zero(device, size, stream);
  }
  void Synchronize(Stream stream) override { device_->Synchronize(stream); }
  std::unique_ptr<DeviceEvent> Record(Stream stream) override { return device_->Record(stream); }
  std::unique_ptr<Graph> Capture(Stream stream, absl::FunctionRef<void()> enqueue) override {
    return device_->Capture(stream, enqueue);
  }

 private:
  const std::unique_ptr<Runtime> device_;
  DeviceProperties properties_;
};

TEST(CudaBackendTest, TheShareIsOfTheWholeDeviceAndAtMostWhatOthersLeave) {
  const auto free_bytes = [](size_t used, double utilization) {
    const auto backend = MakeBackendOn(std::make_unique<SharedDevice>(used), nullptr,
                                       {.gpu_memory_utilization = utilization});
    return *backend.value()->FreeBytes();
  };
  EXPECT_EQ(free_bytes(0, 1.0), kDeviceBytes);
  EXPECT_EQ(free_bytes(0, 0.5), kDeviceBytes / 2);
  EXPECT_EQ(free_bytes(8 << 20, 0.5), kDeviceBytes / 2);
  EXPECT_EQ(free_bytes(kDeviceBytes - (8 << 20), 0.5), 8u << 20);
  EXPECT_EQ(free_bytes(0, 0.3) % Arena::kAlignment, 0u);
  const absl::Status status = MakeBackendOn(std::make_unique<SharedDevice>(kDeviceBytes), nullptr,
                                            {.gpu_memory_utilization = 0.5})
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(ErrorReason(status), "DEVICE_MEMORY");
  for (const char* part : {"0.5", ": 0 of 48 MiB"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  }
}

// A device of one capability, with kernels of another.
absl::StatusOr<std::unique_ptr<Backend>> MakeWith(int compute_capability, int kernel_capability,
                                                  const BackendOptions& options) {
  auto runtime = std::make_unique<DelayedRuntime>(compute_capability, kDeviceBytes);
  runtime->mutable_properties().kernel_capability = kernel_capability;
  return MakeBackendOn(std::move(runtime), nullptr, options);
}

TEST(CudaBackendTest, ComputesInWhatItsKernelsAreFor) {
  EXPECT_EQ(MakeWith(90, 90, {}).value()->activation_dtype(), DType::kBF16);
  EXPECT_EQ(MakeWith(90, 80, {}).value()->activation_dtype(), DType::kBF16);
  EXPECT_EQ(MakeWith(90, 75, {}).value()->activation_dtype(), DType::kF16)
      << "compiled for a T4, on a newer GPU";
  EXPECT_EQ(MakeWith(75, 75, {}).value()->activation_dtype(), DType::kF16);
  BackendOptions options;
  options.cuda.as_t4 = true;
  EXPECT_EQ(MakeWith(90, 90, options).value()->activation_dtype(), DType::kF16);
  options = {.compute = BackendOptions::Compute::kBF16};
  EXPECT_EQ(MakeWith(90, 90, options).value()->activation_dtype(), DType::kBF16);
  const absl::Status status = MakeWith(90, 75, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(status), "BAD_OPTION");
}

TEST(CudaBackendTest, LeavesWhatCudaTakesLater) {
  constexpr size_t kMiB = size_t{1} << 20;
  const auto free_bytes = [&](size_t free, size_t reserved, double utilization) {
    auto runtime = std::make_unique<DelayedRuntime>(80, 100 * kMiB);
    runtime->mutable_properties().free_bytes = free;
    runtime->mutable_properties().reserved_bytes = reserved;
    const auto backend =
        MakeBackendOn(std::move(runtime), nullptr, {.gpu_memory_utilization = utilization});
    if (backend.ok()) return *(*backend)->FreeBytes();
    EXPECT_EQ(backend.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ErrorReason(backend.status()), "DEVICE_MEMORY");
    return size_t{0};
  };
  EXPECT_EQ(free_bytes(100 * kMiB, 0, 1), 100 * kMiB);
  EXPECT_EQ(free_bytes(100 * kMiB, 10 * kMiB, 0.5), 50 * kMiB);
  EXPECT_EQ(free_bytes(100 * kMiB, 60 * kMiB, 0.5), 40 * kMiB);
  EXPECT_EQ(free_bytes(90 * kMiB, 20 * kMiB, 1), 70 * kMiB);
  EXPECT_EQ(free_bytes(90 * kMiB, 20 * kMiB, 0.5), 50 * kMiB) << "others' 10 are theirs";
  EXPECT_EQ(free_bytes(20 * kMiB, 20 * kMiB, 1), 0u);
  EXPECT_EQ(free_bytes(40 * kMiB, 0, 0.5), 40 * kMiB);
}

// ---- Steps -------------------------------------------------------------------------------------

constexpr int kHidden = 48, kHeads = 6, kKvHeads = 2, kHeadDim = 16, kLayers = 2, kVocab = 40;
constexpr int kMaxRows = 24, kBlocks = 20, kSteps = 9;

StepLimits Limits() {
  StepLimits limits;
  limits.max_rows = limits.max_logit_rows = kMaxRows;
  limits.max_sequences = 2;
  limits.max_positions = 128;
  limits.query_heads = kHeads;
  limits.kv_heads = kKvHeads;
  limits.head_dim = kHeadDim;
  limits.block_tokens = 16;
  limits.layers = kLayers;
  limits.hidden_dim = kHidden;
  limits.vocab_size = kVocab;
  return limits;
}

// Logits of several steps of a small model of random weights, none of which is waited for before
// all are enqueued. Everything the host hands over is written over as soon as it may be.
std::vector<float> LogitsOfSteps(Backend& backend) {
  std::mt19937 random(testing::TestSeed(5));
  const auto floats = [&](int64_t count, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
  };
  const auto buffer = [&](const std::vector<float>& values) {
    auto memory = backend.Allocate(values.size() * sizeof(float)).value();
    backend.CopyToDevice(memory->data(), values.data(), values.size() * sizeof(float));
    return memory;
  };
  const auto matrix = [&](int64_t rows, int64_t cols) {
    const std::vector<float> values = floats(rows * cols, 0.2f);
    return backend.Pack({HostMatrix{values.data(), DType::kF32, rows, cols}}).value();
  };
  EXPECT_TRUE(backend.Prepare(Limits()).ok());
  const int qkv_width = (kHeads + 2 * kKvHeads) * kHeadDim, q_width = kHeads * kHeadDim;
  const auto table = buffer(floats(kVocab * kHidden, 1)), weight = buffer(floats(kHidden, 1));
  const auto qkv_matrix = matrix(qkv_width, kHidden), out_matrix = matrix(kHidden, q_width);
  const auto up_matrix = matrix(2 * 64, kHidden), down_matrix = matrix(kHidden, 64);
  const auto logits_matrix = matrix(kVocab, kHidden);
  const std::vector<double> frequencies = {1, 0.3, 0.1, 0.01};
  const auto rope = backend.MakeRopeTable({.inverse_frequencies = frequencies}, 128).value();
  KvPool pool;
  pool.dtype = backend.activation_dtype();
  pool.layer_stride_bytes = int64_t{2} * kKvHeads * 16 * kHeadDim * 2;
  pool.block_stride_bytes = kLayers * pool.layer_stride_bytes;
  pool.block_count = kBlocks;
  pool.kv_heads = kKvHeads;
  pool.head_dim = kHeadDim;
  pool.block_tokens = 16;
  const auto pool_memory =
      backend.Allocate(static_cast<size_t>(pool.block_stride_bytes * kBlocks)).value();
  pool.base = static_cast<std::byte*>(pool_memory->data());

  std::vector<std::unique_ptr<Buffer>> memory;
  const auto tensor = [&](DType dtype, int64_t rows, int64_t cols) {
    memory.push_back(backend.Allocate(static_cast<size_t>(rows * cols) * SizeOf(dtype)).value());
    return Tensor{memory.back()->data(), dtype, rows, cols, cols};
  };
  const DType act = backend.activation_dtype();
  const Tensor x = tensor(DType::kF32, kMaxRows, kHidden);
  const Tensor normed = tensor(act, kMaxRows, kHidden);
  const Tensor qkv = tensor(DType::kF32, kMaxRows, qkv_width);
  const Tensor q = tensor(DType::kF32, kMaxRows, q_width);
  const Tensor attended = tensor(act, kMaxRows, q_width);
  const Tensor delta = tensor(DType::kF32, kMaxRows, kHidden);
  const Tensor gate_up = tensor(DType::kF32, kMaxRows, 2 * 64);
  const Tensor inner = tensor(act, kMaxRows, 64);
  const auto first = [](Tensor of, int64_t rows) {
    of.rows = rows;
    return of;
  };
  std::vector<Tensor> logits;
  std::deque<std::unique_ptr<DeviceBatch>> batches;
  std::vector<int32_t> blocks[2] = {{3, 7, 1, 9, 12}, {4, 0, 2, 8, 11}};
  int contexts[2] = {0, 0};
  for (int step = 0; step < kSteps; ++step) {
    const int counts[2] = {step % 3 == 0 ? 11 : 1, step % 4 == 1 ? 12 : 1};
    const int rows = counts[0] + counts[1];
    std::vector<int32_t> tokens(static_cast<size_t>(rows));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocab);
    std::vector<int32_t> logit_rows = {counts[0] - 1, rows - 1};
    if (step == 4) {
      // The second sequence goes on in copies of its blocks.
      std::vector<int32_t> copies = {13, 14, 15, 16, 17};
      backend.CopyBlocks(pool, blocks[1], copies);
      blocks[1] = copies;
      std::fill(copies.begin(), copies.end(), -1);
    }
    std::vector<SequenceRows> sequences = {{0, counts[0], contexts[0], blocks[0]},
                                           {counts[0], counts[1], contexts[1], blocks[1]}};
    batches.push_back(backend.Upload({tokens, sequences, logit_rows}));
    std::fill(tokens.begin(), tokens.end(), -1);
    std::fill(logit_rows.begin(), logit_rows.end(), -1);
    if (batches.size() > 2) batches.pop_front();
    for (int i = 0; i < 2; ++i) contexts[i] += counts[i];
    const DeviceBatch& batch = *batches.back();
    const Tensor table_tensor = {table->data(), DType::kF32, kVocab, kHidden, kHidden};
    backend.Embed(batch, table_tensor, 1, first(x, rows));
    for (int layer = 0; layer < kLayers; ++layer) {
      const NormArgs norm = {.residual = first(x, rows),
                             .delta = {},
                             .weight = weight.get(),
                             .eps = 1e-5f,
                             .out = first(normed, rows)};
      NormArgs add_and_norm = norm;
      add_and_norm.delta = first(delta, rows);
      backend.Norm(norm);
      backend.MatMul(first(normed, rows), *qkv_matrix, nullptr, first(qkv, rows));
      RopeWriteArgs write;
      write.layer = layer;
      write.query_heads = kHeads;
      write.qkv = first(qkv, rows);
      write.rope = rope.get();
      write.q_out = first(q, rows);
      backend.RopeWriteKv(batch, pool, write);
      AttentionArgs attend;
      attend.layer = layer;
      attend.query_heads = kHeads;
      attend.scale = 0.25f;
      attend.score_cap = layer == 1 ? 20.0f : 0.0f;
      attend.q = first(q, rows);
      attend.out = first(attended, rows);
      backend.Attention(batch, pool, attend);
      backend.MatMul(first(attended, rows), *out_matrix, nullptr, first(delta, rows));
      backend.Norm(add_and_norm);
      backend.MatMulGated(first(normed, rows), *up_matrix, {}, first(gate_up, rows),
                          first(inner, rows));
      backend.MatMul(first(inner, rows), *down_matrix, nullptr, first(delta, rows));
      backend.Norm(add_and_norm);
    }
    const Tensor picked = tensor(DType::kF32, 2, kHidden), last = tensor(act, 2, kHidden);
    backend.GatherLogitRows(batch, first(x, rows), picked);
    backend.Norm(
        {.residual = picked, .delta = {}, .weight = weight.get(), .eps = 1e-5f, .out = last});
    logits.push_back(tensor(DType::kF32, 2, kVocab));
    backend.MatMul(last, *logits_matrix, nullptr, logits.back());
    backend.ScaleLogits(logits.back(), 0.5f, 30);
  }
  std::vector<float> all;
  for (const Tensor& of_step : logits) {
    std::vector<float> values(2 * kVocab);
    backend.CopyToHost(values.data(), of_step.data, values.size() * sizeof(float));
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

// The same bits on a device that does nothing before it must, and under any order of blocks and
// warps.
TEST(CudaBackendTest, StepsMayRunLongAfterTheyWereEnqueued) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  for (const int capability : {75, 80}) {
    const auto at_once = MakeOn(capability, {}).value();
    const std::vector<float> expected = LogitsOfSteps(*at_once);
    ASSERT_EQ(expected.size(), size_t{kSteps * 2 * kVocab});
    for (const float logit : expected) ASSERT_TRUE(std::isfinite(logit));
    const auto delayed =
        MakeBackendOn(std::make_unique<DelayedRuntime>(capability, kDeviceBytes, seed), nullptr, {})
            .value();
    EXPECT_EQ(LogitsOfSteps(*delayed), expected) << capability;
  }
}

TEST(CudaBackendTest, WhatACopierWritesFirstIsNotZeroedLater) {
  auto made = MakeBackendOn(std::make_unique<DelayedRuntime>(80, kDeviceBytes), nullptr, {});
  ASSERT_TRUE(made.ok()) << made.status();
  Backend& backend = **made;
  ASSERT_TRUE(backend.Prepare(Limits()).ok());
  constexpr size_t kChunkBytes = size_t{2} * kKvHeads * 16 * kHeadDim * 2;
  const std::unique_ptr<Buffer> memory = backend.Allocate(kBlocks * kLayers * kChunkBytes).value();
  KvPool pool;
  pool.base = static_cast<std::byte*>(memory->data());
  pool.layer_stride_bytes = kChunkBytes;
  pool.block_stride_bytes = kLayers * kChunkBytes;
  pool.block_count = kBlocks;
  pool.kv_heads = kKvHeads;
  pool.head_dim = kHeadDim;
  pool.block_tokens = 16;
  pool.dtype = backend.activation_dtype();
  const std::unique_ptr<KvCopier> copier = backend.MakeKvCopier(pool);

  const std::vector<std::byte> sent(2 * kChunkBytes, std::byte{0x5a});
  std::vector<std::byte> received(sent.size());
  copier->Write({1}, {3, 1}, sent.data());
  backend.RecordEvent()->Wait();  // all that the compute stream has
  copier->Read({1}, {3, 1}, nullptr, received.data());
  EXPECT_EQ(received, sent);
  copier->Read({0}, {3, 1}, nullptr, received.data());
  EXPECT_EQ(received, std::vector<std::byte>(sent.size())) << "the rest is zeros";
}

// ---- Other people's products -------------------------------------------------------------------

struct ProductsLog {
  size_t offered = 0;
  void* workspace = nullptr;
};
// Accepts some products, and multiplies them with the deterministic kernels.
class HalfHearted final : public Products {
 public:
  HalfHearted(ProductsLog& log, bool takes) : log_(log), takes_(takes) {}
  size_t WorkspaceBytes() const override { return 12'345; }
  void SetWorkspace(void* device) override { log_.workspace = device; }
  bool MatMul(const MatMulLaunch& launch, DType dtype, Stream stream) override {
    EXPECT_NE(log_.workspace, nullptr) << "handed over before the first product";
    ++log_.offered;
    if (takes_) LaunchMatMul(launch, dtype, stream, MatMulShape::kTile);
    return takes_;
  }

 private:
  ProductsLog& log_;
  const bool takes_;
};

TEST(CudaBackendTest, ProductsThatNobodyTakesAreMultipliedAllTheSame) {
  const auto alone = MakeOn(80, {}).value();
  const std::vector<float> expected = LogitsOfSteps(*alone);
  for (const bool takes : {false, true}) {
    ProductsLog log;
    const auto backend = MakeBackendOn(MakeEmulatedRuntime(80, kDeviceBytes),
                                       std::make_unique<HalfHearted>(log, takes), {})
                             .value();
    EXPECT_GE(backend->WorkspaceBytes(Limits()), alone->WorkspaceBytes(Limits()) + 12'345);
    EXPECT_EQ(LogitsOfSteps(*backend), expected);
    // Gate and up, of so few rows, are multiplied by a kernel that gates them too.
    EXPECT_EQ(log.offered, size_t{kSteps * (3 * kLayers + 1)});
  }
}

}  // namespace
}  // namespace baton::backend::cuda
