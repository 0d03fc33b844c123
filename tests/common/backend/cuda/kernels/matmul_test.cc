// The deterministic products, run lane by lane on the CPU.
#include "common/backend/cuda/kernels/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "common/backend/cuda/kernels/elementwise.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

class CudaMatMulTest : public ::testing::Test {
 protected:
  void TearDown() override { emulated::SetOptions({}); }
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  // 16-bit [rows, cols] with a stride, NaNs between the rows.
  std::vector<Vec16> Matrix(int rows, int cols, int64_t stride, DType dtype) {
    std::vector<Vec16> memory(static_cast<size_t>(rows * stride) / 8, Vec16{~0u, ~0u, ~0u, ~0u});
    auto* values = reinterpret_cast<uint16_t*>(memory.data());
    std::normal_distribution<float> normal(0, 1);
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < cols; ++col) {
        const float value = normal(random_);
        values[row * stride + col] =
            dtype == DType::kF16 ? Half::FromF32(value) : BFloat16::FromF32(value);
      }
    }
    return memory;
  }
  static double Value(const std::vector<Vec16>& matrix, int64_t index, DType dtype) {
    const uint16_t bits = reinterpret_cast<const uint16_t*>(matrix.data())[index];
    return static_cast<double>(dtype == DType::kF16 ? Half::ToF32(bits) : BFloat16::ToF32(bits));
  }

  const uint64_t seed_ = std::random_device()();
  std::mt19937_64 random_{seed_};
};

TEST_F(CudaMatMulTest, BothShapesEqualTheReferenceAndEachOther) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 30; ++round) {
    const int rows = Int(1, 90), n = Int(1, 150), k = 8 * Int(1, 40);
    const int64_t stride = k + 8 * Int(0, 2);
    const DType dtype = Int(0, 1) || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << rows << " x " << k << " by "
                                      << n << ", " << Name(dtype));
    emulated::SetOptions(
        {.compute_capability = dtype == DType::kF16 && Int(0, 1) ? 75 : 80, .seed = random_()});
    const std::vector<Vec16> x = Matrix(rows, k, stride, dtype), w = Matrix(n, k, k, dtype);
    std::vector<float> bias(static_cast<size_t>(n));
    for (float& value : bias) value = static_cast<float>(Int(-3, 3));
    const int64_t out_stride = n + Int(0, 3);
    std::vector<float> out[2];
    for (int shape = 0; shape < 2; ++shape) {
      out[shape].assign(static_cast<size_t>(rows * out_stride), NAN);
      LaunchMatMul({.x = x.data(),
                    .x_stride = stride,
                    .w = w.data(),
                    .bias = round % 2 ? bias.data() : nullptr,
                    .out = out[shape].data(),
                    .out_stride = out_stride,
                    .rows = rows,
                    .n = n,
                    .k = k},
                   dtype, nullptr, shape ? MatMulShape::kTile : MatMulShape::kRows);
    }
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < out_stride; ++column) {
        const auto at = static_cast<size_t>(row * out_stride + column);
        if (column >= n) {
          ASSERT_TRUE(std::isnan(out[0][at]) && std::isnan(out[1][at])) << "written beyond n";
          continue;
        }
        double expected = round % 2 ? static_cast<double>(bias[static_cast<size_t>(column)]) : 0;
        for (int i = 0; i < k; ++i) {
          expected += Value(x, row * stride + i, dtype) * Value(w, int64_t{column} * k + i, dtype);
        }
        ASSERT_NEAR(out[0][at], expected, 1e-4) << "row " << row << ", column " << column;
        ASSERT_EQ(FloatBits(out[0][at]), FloatBits(out[1][at]));
      }
    }
  }
}

TEST_F(CudaMatMulTest, SiluMulInTheProductHasTheBitsOfTheTwo) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 30; ++round) {
    const int rows = Int(1, 40), cols = 8 * Int(1, 10), k = 8 * Int(1, 60);
    const int64_t stride = k + 8 * Int(0, 2), out_stride = cols + 8 * Int(0, 2);
    const DType dtype = Int(0, 1) || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << rows << " x " << k
                                      << " by 2 x " << cols << ", " << Name(dtype));
    emulated::SetOptions(
        {.compute_capability = dtype == DType::kF16 && Int(0, 1) ? 75 : 80, .seed = random_()});
    const std::vector<Vec16> x = Matrix(rows, k, stride, dtype), w = Matrix(2 * cols, k, k, dtype);
    std::vector<Vec16> gate_up(static_cast<size_t>(rows * cols) / 2);
    LaunchMatMul({.x = x.data(),
                  .x_stride = stride,
                  .w = w.data(),
                  .bias = nullptr,
                  .out = reinterpret_cast<float*>(gate_up.data()),
                  .out_stride = 2 * cols,
                  .rows = rows,
                  .n = 2 * cols,
                  .k = k},
                 dtype, nullptr, Int(0, 1) ? MatMulShape::kTile : MatMulShape::kRows);
    std::vector<Vec16> out[2];
    for (auto& each : out) {
      each.assign(static_cast<size_t>(rows * out_stride) / 8, Vec16{~0u, ~0u, ~0u, ~0u});
    }
    LaunchSiluMul({.gate_up = reinterpret_cast<const float*>(gate_up.data()),
                   .gate_up_stride = 2 * cols,
                   .out = out[0].data(),
                   .out_stride = out_stride,
                   .cols = cols},
                  dtype, rows, nullptr);
    LaunchMatMulSiluMul({.x = x.data(),
                         .x_stride = stride,
                         .w = w.data(),
                         .out = out[1].data(),
                         .out_stride = out_stride,
                         .rows = rows,
                         .cols = cols,
                         .k = k},
                        dtype, nullptr);
    // Between the rows, too.
    ASSERT_EQ(std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(Vec16)), 0);
  }
}

// Batch invariance: a row's product does not depend on the rows beside it.
TEST_F(CudaMatMulTest, ARowIsTheSameInEveryBatch) {
  SCOPED_TRACE(seed_);
  const int rows = 70, n = 40, k = 256;
  const DType dtype = DType::kF16;
  const std::vector<Vec16> x = Matrix(rows, k, k, dtype), w = Matrix(n, k, k, dtype);
  MatMulLaunch launch = {.x = x.data(),
                         .x_stride = k,
                         .w = w.data(),
                         .bias = nullptr,
                         .out = nullptr,
                         .out_stride = n,
                         .rows = rows,
                         .n = n,
                         .k = k};
  std::vector<float> all(static_cast<size_t>(rows * n));
  launch.out = all.data();
  LaunchMatMul(launch, dtype, nullptr);
  for (int round = 0; round < 40; ++round) {
    const int first = Int(0, rows - 1), count = Int(1, rows - first);
    std::vector<float> some(static_cast<size_t>(count * n));
    launch.x = reinterpret_cast<const uint16_t*>(x.data()) + first * k;
    launch.out = some.data();
    launch.rows = count;
    LaunchMatMul(launch, dtype, nullptr);
    for (int i = 0; i < count * n; ++i) {
      ASSERT_EQ(FloatBits(some[static_cast<size_t>(i)]),
                FloatBits(all[static_cast<size_t>(first * n + i)]));
    }
  }
}

}  // namespace
}  // namespace baton::backend::cuda
