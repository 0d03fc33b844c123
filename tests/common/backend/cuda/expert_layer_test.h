// An emulated device for layers of a few small experts, and operands for them.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_EXPERT_LAYER_TEST_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_EXPERT_LAYER_TEST_H_

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "common/backend/cuda/cuda_backend.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {

inline constexpr int kWidth = 16, kInner = 8, kExpertCount = 3, kPerToken = 2;
inline constexpr int kStepRows = static_cast<int>(kExpertRowsAtOnce) + 37;

// The bytes of all experts in float16.
inline constexpr int64_t kFetchedBytes =
    kExpertCount *
    (FetchedMatrixBytes(2 * 2 * kInner * kWidth) + FetchedMatrixBytes(2 * kWidth * kInner));

class ExpertLayerTest : public ::testing::Test {
 protected:
  ExpertLayerTest() {
    auto made = MakeBackendOn(MakeEmulatedRuntime(75, size_t{64} << 20, random_()), nullptr,
                              {.compute = BackendOptions::Compute::kF16});
    EXPECT_TRUE(made.ok()) << made.status();
    backend_ = *std::move(made);
    EXPECT_TRUE(backend_
                    ->Prepare({.max_rows = kStepRows,
                               .max_sequences = 1,
                               .max_logit_rows = 1,
                               .max_positions = 16,
                               .query_heads = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .block_tokens = 16,
                               .layers = 1,
                               .hidden_dim = kWidth,
                               .vocab_size = 32,
                               .experts = kExpertCount,
                               .experts_per_token = kPerToken,
                               .fetched_expert_bytes = kFetchedBytes})
                    .ok());
  }

  std::vector<float> Random(int64_t size) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = normal(random_);
    return values;
  }
  std::unique_ptr<PackedMatrix> Matrix(int64_t rows, int64_t cols) {
    return Pack(*backend_, Random(rows * cols), rows);
  }
  static std::unique_ptr<PackedMatrix> Pack(MatrixPacker& packer, const std::vector<float>& values,
                                            int64_t rows) {
    const auto cols = static_cast<int64_t>(values.size()) / rows;
    return packer.Pack({{values.data(), DType::kF32, rows, cols}}).value();
  }
  std::unique_ptr<PackedMatrix> Quantized(int64_t rows, int64_t cols, int bits,
                                          const int32_t* order = nullptr) {
    const std::vector<uint8_t> values(static_cast<size_t>(rows * cols * bits / 8), 0x35);
    const std::vector<uint16_t> scales(static_cast<size_t>(rows), 0x2c00), zeros(scales.size(), 3);
    const QuantizedHostMatrix matrix = {.bits = bits,
                                        .rows = rows,
                                        .cols = cols,
                                        .group_size = cols,
                                        .values = values.data(),
                                        .scales = scales.data(),
                                        .scale_dtype = DType::kF16,
                                        .zeros = zeros.data(),
                                        .order = order};
    return backend_->PackQuantized({matrix}).value();
  }
  struct DeviceTensor {
    std::unique_ptr<Buffer> memory;
    Tensor tensor;
  };
  DeviceTensor Empty(int64_t rows, int64_t cols, DType dtype) {
    DeviceTensor made;
    made.memory = backend_->Allocate(static_cast<size_t>(rows * cols) * SizeOf(dtype)).value();
    made.tensor = {made.memory->data(), dtype, rows, cols, cols};
    return made;
  }

  std::mt19937_64 random_{baton::testing::TestSeed()};
  std::unique_ptr<Backend> backend_;
};

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_EXPERT_LAYER_TEST_H_
