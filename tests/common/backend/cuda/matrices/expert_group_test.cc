// Layers of experts through the backend, on an emulated device.
#include "common/backend/cuda/matrices/expert_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/backend/cuda/cuda_backend.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int kWidth = 16, kInner = 8, kExpertCount = 3, kPerToken = 2;
constexpr int kStepRows = static_cast<int>(kExpertRowsAtOnce) + 37;

class CudaExpertGroupTest : public ::testing::Test {
 protected:
  CudaExpertGroupTest() {
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
                               .experts_per_token = kPerToken})
                    .ok());
  }

  std::vector<float> Random(int64_t size) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> values(static_cast<size_t>(size));
    for (float& value : values) value = normal(random_);
    return values;
  }
  std::unique_ptr<PackedMatrix> Matrix(int64_t rows, int64_t cols) {
    const std::vector<float> values = Random(rows * cols);
    return backend_->Pack({{values.data(), DType::kF32, rows, cols}}).value();
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

// More rows than are computed at once: the parts share no result.
TEST_F(CudaExpertGroupTest, ARowHasTheBitsThatItHasAlone) {
  std::vector<std::unique_ptr<PackedMatrix>> matrices;
  std::vector<ExpertMatrices> experts;
  for (int i = 0; i < kExpertCount; ++i) {
    matrices.push_back(Matrix(2 * kInner, kWidth));
    matrices.push_back(Matrix(kWidth, kInner));
    experts.push_back({matrices[matrices.size() - 2].get(), matrices.back().get()});
  }
  const auto group = backend_->GroupExperts(experts, {}).value();
  const std::vector<float> router_values = Random(kExpertCount * kWidth);
  const auto router =
      backend_->PackRouter({router_values.data(), DType::kF32, kExpertCount, kWidth}).value();
  std::vector<uint16_t> x(static_cast<size_t>(kStepRows) * kWidth);
  for (uint16_t& value : x) value = static_cast<uint16_t>(0x3000 | (random_() & 0x8fff));
  const auto run = [&](int first, int rows) {
    const auto scratch = ExpertScratch::For(rows, kPerToken, true);
    const DeviceTensor d_x = Empty(rows, kWidth, DType::kF16),
                       logits = Empty(rows, kExpertCount, DType::kF32),
                       gated = Empty(scratch.results, kInner, DType::kF16),
                       results = Empty(scratch.results, kWidth, DType::kF32),
                       out = Empty(rows, kWidth, DType::kF32);
    backend_->CopyToDevice(d_x.tensor.data, x.data() + first * kWidth,
                           static_cast<size_t>(rows * kWidth) * sizeof(uint16_t));
    backend_->Experts({.x = d_x.tensor,
                       .router = router.get(),
                       .router_bias = nullptr,
                       .routing = {.per_token = kPerToken, .normalized = true},
                       .group = group.get(),
                       .gating = {},
                       .logits = logits.tensor,
                       .inputs = {},
                       .gate_up_rows = {},
                       .gated = gated.tensor,
                       .results = results.tensor,
                       .out = out.tensor});
    std::vector<float> host(static_cast<size_t>(rows) * kWidth);
    backend_->CopyToHost(host.data(), out.tensor.data, host.size() * sizeof(float));
    return host;
  };
  const std::vector<float> all = run(0, kStepRows);
  for (const int row : {0, 1, static_cast<int>(kExpertRowsAtOnce) - 1,
                        static_cast<int>(kExpertRowsAtOnce), kStepRows - 1}) {
    const std::vector<float> alone = run(row, 1);
    EXPECT_EQ(
        std::memcmp(alone.data(), &all[static_cast<size_t>(row) * kWidth], kWidth * sizeof(float)),
        0)
        << "row " << row;
    EXPECT_NE(alone[0], 0);
  }
}

TEST_F(CudaExpertGroupTest, MatricesOfSeveralFormsAreRefused) {
  const auto up = Matrix(2 * kInner, kWidth), down = Matrix(kWidth, kInner);
  const auto four = Quantized(2 * kInner, kWidth, 4), eight = Quantized(2 * kInner, kWidth, 8);
  EXPECT_TRUE(
      backend_->GroupExperts({{four.get(), down.get()}, {four.get(), down.get()}}, {}).ok());
  for (const PackedMatrix* other : {up.get(), eight.get()}) {
    const absl::Status status =
        backend_->GroupExperts({{four.get(), down.get()}, {other, down.get()}}, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("matrices of several forms"));
  }
}

TEST_F(CudaExpertGroupTest, ColumnsInAnotherOrderAreRefused) {
  std::vector<int32_t> order(kWidth);
  std::iota(order.rbegin(), order.rend(), 0);
  const auto up = Quantized(2 * kInner, kWidth, 4, order.data());
  const auto down = Matrix(kWidth, kInner);
  EXPECT_THAT(std::string(backend_->GroupExperts({{up.get(), down.get()}}, {}).status().message()),
              HasSubstr("desc_act"));
}

}  // namespace
}  // namespace baton::backend::cuda
