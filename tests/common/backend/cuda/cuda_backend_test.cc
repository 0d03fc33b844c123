// The whole backend on a device that does nothing before it must.
#include "common/backend/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "tests/common/backend/cuda/delayed_runtime.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kMemoryBytes = size_t{96} << 20;
constexpr int kBlocks = 4, kLayers = 2, kHeads = 1, kDim = 16, kTokens = 16;
constexpr size_t kChunkBytes = size_t{2} * kHeads * kTokens * kDim * 2;

StepLimits Limits() {
  return {.max_rows = 8,
          .max_sequences = 2,
          .max_logit_rows = 2,
          .max_positions = 64,
          .query_heads = kHeads,
          .kv_heads = kHeads,
          .head_dim = kDim,
          .block_tokens = kTokens,
          .layers = kLayers,
          .hidden_dim = 16,
          .vocab_size = 32};
}

TEST(CudaBackendTest, WhatACopierWritesFirstIsNotZeroedLater) {
  auto made = MakeBackendOn(std::make_unique<DelayedRuntime>(80, kMemoryBytes), nullptr, {});
  ASSERT_TRUE(made.ok()) << made.status();
  Backend& backend = **made;
  ASSERT_TRUE(backend.Prepare(Limits()).ok());
  const std::unique_ptr<Buffer> memory = backend.Allocate(kBlocks * kLayers * kChunkBytes).value();
  KvPool pool;
  pool.base = static_cast<std::byte*>(memory->data());
  pool.layer_stride_bytes = kChunkBytes;
  pool.block_stride_bytes = kLayers * kChunkBytes;
  pool.block_count = kBlocks;
  pool.kv_heads = kHeads;
  pool.head_dim = kDim;
  pool.block_tokens = kTokens;
  pool.dtype = backend.activation_dtype();
  const std::unique_ptr<KvCopier> copier = backend.MakeKvCopier(pool);

  const std::vector<std::byte> sent(2 * kChunkBytes, std::byte{0x5a});
  std::vector<std::byte> received(sent.size());
  copier->Write(1, {3, 1}, sent.data());
  backend.RecordEvent()->Wait();  // all that the compute stream has
  copier->Read(1, {3, 1}, nullptr, received.data());
  EXPECT_EQ(received, sent);
  copier->Read(0, {3, 1}, nullptr, received.data());
  EXPECT_EQ(received, std::vector<std::byte>(sent.size())) << "the rest is zeros";
}

// A device of a capability of its own, with kernels of another.
absl::StatusOr<std::unique_ptr<Backend>> MakeOn(int compute_capability, int kernel_capability,
                                                const BackendOptions& options) {
  auto runtime = std::make_unique<DelayedRuntime>(compute_capability, kMemoryBytes);
  runtime->mutable_properties().kernel_capability = kernel_capability;
  return MakeBackendOn(std::move(runtime), nullptr, options);
}

TEST(CudaBackendTest, ComputesInTheTypeThatItsKernelsAreFor) {
  EXPECT_EQ(MakeOn(90, 90, {}).value()->activation_dtype(), DType::kBF16);
  EXPECT_EQ(MakeOn(90, 80, {}).value()->activation_dtype(), DType::kBF16);
  EXPECT_EQ(MakeOn(90, 75, {}).value()->activation_dtype(), DType::kF16)
      << "compiled for a T4, on a newer GPU";
  EXPECT_EQ(MakeOn(75, 75, {}).value()->activation_dtype(), DType::kF16);
  BackendOptions options;
  options.as_t4 = true;
  EXPECT_EQ(MakeOn(90, 90, options).value()->activation_dtype(), DType::kF16);
  options = {.compute = BackendOptions::Compute::kBF16};
  EXPECT_EQ(MakeOn(90, 90, options).value()->activation_dtype(), DType::kBF16);
  const absl::Status status = MakeOn(90, 75, options).status();
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
  EXPECT_EQ(free_bytes(90 * kMiB, 20 * kMiB, 0.5), 40 * kMiB) << "others' 10 are of the share";
  EXPECT_EQ(free_bytes(20 * kMiB, 20 * kMiB, 1), 0u);
  EXPECT_EQ(free_bytes(40 * kMiB, 0, 0.5), 0u);
}

}  // namespace
}  // namespace baton::backend::cuda
