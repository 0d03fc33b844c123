// The deterministic products, run lane by lane on the CPU.
#include "common/backend/cuda/kernels/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <vector>

#include "common/backend/cuda/kernels/elementwise.h"
#include "common/backend/cuda/kernels/matmul_normed.h"
#include "common/backend/cuda/kernels/norm.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

class CudaMatMulTest : public ::testing::Test {
 protected:
  void TearDown() override { emulated::SetOptions({}); }
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  // Each number beside the ends of blocks in both dtypes, then any.
  int Rows(size_t round, int most) {
    constexpr int kEdges[] = {1, 8, 9, 16, 17, 32, 33, 64, 65, 127, 128, 129};
    return round / 2 < std::size(kEdges) ? std::min(kEdges[round / 2], most) : Int(1, most);
  }
  static DType DTypeOf(size_t round) {
    return round % 2 == 0 || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
  }

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

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
};

// Every shape of block.
constexpr MatMulShape kShapes[] = {MatMulShape::kNarrowRows, MatMulShape::kWideRows,
                                   MatMulShape::kSmallTile, MatMulShape::kLargeTile};

TEST_F(CudaMatMulTest, EveryShapeEqualsTheReferenceAndTheOthers) {
  SCOPED_TRACE(seed_);
  for (size_t round = 0; round < 56; ++round) {
    // Slices of some chunks, or so long that rings go around without looking for their ends; the
    // last rounds with several sets of columns for each block of few rows.
    const bool sets = round >= 48, long_k = sets || round % 8 > 5;
    const int rows = sets ? Int(1, 16) : Rows(round, 140);
    const int n = sets ? Int(80, 150) : Int(1, long_k ? 20 : 150);
    const int k = 8 * (sets ? Int(260, 400) : long_k ? Int(300, 900) : Int(1, 40));
    const int64_t stride = k + 8 * Int(0, 2);
    const DType dtype = DTypeOf(round);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << rows << " x " << k << " by "
                                      << n << ", " << Name(dtype));
    emulated::SetOptions(
        {.compute_capability = dtype == DType::kF16 && Int(0, 1) ? 75 : 80, .seed = random_()});
    const std::vector<Vec16> x = Matrix(rows, k, stride, dtype), w = Matrix(n, k, k, dtype);
    std::vector<float> bias(static_cast<size_t>(n));
    for (float& value : bias) value = static_cast<float>(Int(-3, 3));
    const int64_t out_stride = n + Int(0, 3);
    std::vector<float> out[std::size(kShapes)];
    for (size_t shape = 0; shape < std::size(kShapes); ++shape) {
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
                   dtype, nullptr, kShapes[shape]);
    }
    for (int row = 0; row < rows; ++row) {
      for (int column = 0; column < out_stride; ++column) {
        const auto at = static_cast<size_t>(row * out_stride + column);
        if (column >= n) {
          for (const auto& each : out) ASSERT_TRUE(std::isnan(each[at])) << "written beyond n";
          continue;
        }
        double expected = round % 2 ? static_cast<double>(bias[static_cast<size_t>(column)]) : 0;
        for (int i = 0; i < k; ++i) {
          expected += Value(x, row * stride + i, dtype) * Value(w, int64_t{column} * k + i, dtype);
        }
        ASSERT_NEAR(out[0][at], expected, long_k ? 1e-3 : 1e-4)
            << "row " << row << ", column " << column;
        for (const auto& each : out) ASSERT_EQ(FloatBits(each[at]), FloatBits(out[0][at]));
      }
    }
  }
}

TEST_F(CudaMatMulTest, GateInTheProductHasTheBitsOfTheTwo) {
  SCOPED_TRACE(seed_);
  const auto rounds = static_cast<size_t>(Rounds(48, 26));
  for (size_t round = 0; round < rounds + 8; ++round) {
    const bool sets = round >= rounds, long_k = sets || round % 4 == round / 4 % 2;
    const int rows = sets ? Int(1, 16) : Rows(round, 150);
    const int cols = 8 * (sets ? Int(5, 9) : long_k ? Int(1, 3) : Int(1, 20));
    const int k = 8 * (sets ? Int(260, 400) : long_k ? Int(300, 600) : Int(1, 60));
    const int64_t stride = k + 8 * Int(0, 2), out_stride = cols + 8 * Int(0, 2);
    const DType dtype = DTypeOf(round);
    const Gating gating = {.kind = static_cast<GateKind>(Int(0, 2)),
                           .scale = Int(0, 1) ? 1.0f : 0.25f};
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << rows << " x " << k << " by 2 x " << cols << ", "
                 << Name(dtype) << ", gate " << static_cast<int>(gating.kind));
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
                 dtype, nullptr, kShapes[Int(0, std::size(kShapes) - 1)]);
    // Of the two; then by the shape that is chosen, and by every one.
    std::vector<Vec16> out[5];
    for (auto& each : out) {
      each.assign(static_cast<size_t>(rows * out_stride) / 8, Vec16{~0u, ~0u, ~0u, ~0u});
    }
    LaunchGate({.gate_up = reinterpret_cast<const float*>(gate_up.data()),
                .gate_up_stride = 2 * cols,
                .out = out[0].data(),
                .out_stride = out_stride,
                .cols = cols,
                .gating = gating},
               dtype, rows, nullptr);
    for (size_t i = 1; i < std::size(out); ++i) {
      constexpr MatMulShape kGatedShapes[] = {MatMulShape::kAuto, MatMulShape::kRows,
                                              MatMulShape::kSmallTile, MatMulShape::kLargeTile};
      LaunchMatMulGated({.x = x.data(),
                         .x_stride = stride,
                         .w = w.data(),
                         .out = out[i].data(),
                         .out_stride = out_stride,
                         .rows = rows,
                         .cols = cols,
                         .k = k,
                         .gating = gating},
                        dtype, nullptr, kGatedShapes[i - 1]);
      // Between the rows, too.
      ASSERT_EQ(std::memcmp(out[0].data(), out[i].data(), out[0].size() * sizeof(Vec16)), 0) << i;
    }
  }
}

// More rows of blocks than run beside each other, and a rest of them.
TEST_F(CudaMatMulTest, EveryBlockHasItsPlace) {
  const int rows = 1100, n = 140, k = 8;
  const std::vector<Vec16> x = Matrix(rows, k, k, DType::kF16), w = Matrix(n, k, k, DType::kF16);
  std::vector<float> out[std::size(kShapes)];
  for (size_t shape = 0; shape < std::size(kShapes); ++shape) {
    out[shape].assign(rows * n, NAN);
    emulated::SetOptions({.seed = random_()});
    LaunchMatMul({.x = x.data(),
                  .x_stride = k,
                  .w = w.data(),
                  .bias = nullptr,
                  .out = out[shape].data(),
                  .out_stride = n,
                  .rows = rows,
                  .n = n,
                  .k = k},
                 DType::kF16, nullptr, kShapes[shape]);
    ASSERT_EQ(std::memcmp(out[shape].data(), out[0].data(), out[0].size() * sizeof(float)), 0);
  }
}

// Batch invariance: a row's product does not depend on the rows beside it.
TEST_F(CudaMatMulTest, ARowIsTheSameInEveryBatch) {
  SCOPED_TRACE(seed_);
  const int rows = 150, n = 40, k = 264;
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

// Norms in the kernels of products, and products that are added to the residual: the bits of the
// kernels that they stand for.
class CudaNormedMatMulTest : public KernelTest {
 protected:
  // Any type that the machine multiplies, and a machine that does.
  DType ChangeTypeAndMachine() {
    const DType dtype = MultipliesBFloat16() && Coin() ? DType::kBF16 : DType::kF16;
    emulated::SetOptions(
        {.compute_capability = dtype == DType::kF16 && Coin() ? 75 : 80, .seed = random_()});
    return dtype;
  }
  // The least and the most that a block norms, then any; 16-byte rows of any length.
  void DrawShape(int round) {
    constexpr int kShapes[][2] = {{1, 8}, {8, 512}, {1, 4096}, {4, 1024}, {2, 2048}, {8, 504}};
    const bool given = round < 6;
    rows_ = given ? kShapes[round][0] : Int(1, 8);
    do {
      k_ = given ? kShapes[round][1] : 8 * (Coin() ? Int(1, 64) : Int(1, 512));
    } while (!NormsInProduct(rows_, k_));
    x_stride_ = k_ + 8 * Int(0, 2);
    const float spread = std::exp(Normal(2));
    x_ = DeviceArray<float>(static_cast<size_t>(rows_ * x_stride_));
    weight_ = DeviceArray<float>(static_cast<size_t>(k_));
    for (int row = 0; row < rows_; ++row) {
      for (int i = 0; i < k_; ++i) x_[static_cast<size_t>(row * x_stride_ + i)] = Normal(spread);
    }
    for (int i = 0; i < k_; ++i) weight_[static_cast<size_t>(i)] = 1 + Normal(0.2f);
  }
  DeviceArray<uint16_t> Weights(int n, DType dtype) {
    DeviceArray<uint16_t> w(static_cast<size_t>(n) * static_cast<size_t>(k_));
    for (size_t i = 0; i < static_cast<size_t>(n) * static_cast<size_t>(k_); ++i) {
      w[i] = dtype == DType::kF16 ? Half::FromF32(Normal(1)) : BFloat16::FromF32(Normal(1));
    }
    return w;
  }
  NormedInput Input() {
    return {.x = x_.data(), .x_stride = x_stride_, .weight = weight_.data(), .eps = 1e-6f};
  }
  // What LaunchNorm makes of the input.
  DeviceArray<uint16_t> Normed(DType dtype) {
    DeviceArray<uint16_t> out(static_cast<size_t>(rows_ * k_));
    NormLaunch launch = {};
    launch.x = x_.data();
    launch.x_stride = x_stride_;
    launch.weight = weight_.data();
    launch.out = out.data();
    launch.out_stride = k_;
    launch.cols = k_;
    launch.eps = 1e-6f;
    LaunchNorm(launch, dtype, rows_, nullptr);
    return out;
  }

  int rows_ = 0, k_ = 0;
  int64_t x_stride_ = 0;
  DeviceArray<float> x_{0}, weight_{0};
};

TEST_F(CudaNormedMatMulTest, HasTheBitsOfTheTwoKernels) {
  for (int round = 0; round < Rounds(60, 30); ++round) {
    DrawShape(round);
    const DType dtype = ChangeTypeAndMachine();
    const int n = round % 2 == 0 ? Int(1, 16) : Int(17, 150);  // a block's columns, or more
    const int64_t out_stride = n + Int(0, 3);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << rows_ << " x " << k_ << " by "
                                      << n << ", " << Name(dtype));
    const DeviceArray<uint16_t> w = Weights(n, dtype), normed = Normed(dtype);
    DeviceArray<float> bias(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) bias[static_cast<size_t>(i)] = Normal(1);
    DeviceArray<float> apart(static_cast<size_t>(rows_ * out_stride));
    DeviceArray<float> together(static_cast<size_t>(rows_ * out_stride));
    NormedMatMulLaunch launch = {{.x = normed.data(),
                                  .x_stride = k_,
                                  .w = w.data(),
                                  .bias = Coin() ? bias.data() : nullptr,
                                  .out = apart.data(),
                                  .out_stride = out_stride,
                                  .rows = rows_,
                                  .n = n,
                                  .k = k_},
                                 Input()};
    LaunchMatMul(launch, dtype, nullptr);
    launch.x = nullptr;
    launch.out = together.data();
    LaunchNormedMatMul(launch, dtype, nullptr);
    // Between the rows, too.
    ASSERT_EQ(std::memcmp(apart.data(), together.data(), apart.size() * sizeof(float)), 0);
  }
}

TEST_F(CudaNormedMatMulTest, GatedHasTheBitsOfTheTwoKernels) {
  for (int round = 0; round < Rounds(60, 30); ++round) {
    DrawShape(round);
    const DType dtype = ChangeTypeAndMachine();
    const int cols = 8 * Int(1, 12);
    const int64_t out_stride = cols + 8 * Int(0, 2);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << rows_ << " x " << k_ << " by "
                                      << cols << ", " << Name(dtype));
    const DeviceArray<uint16_t> w = Weights(2 * cols, dtype), normed = Normed(dtype);
    DeviceArray<uint16_t> apart(static_cast<size_t>(rows_ * out_stride));
    DeviceArray<uint16_t> together(static_cast<size_t>(rows_ * out_stride));
    NormedMatMulGatedLaunch launch = {
        {.x = normed.data(),
         .x_stride = k_,
         .w = w.data(),
         .out = apart.data(),
         .out_stride = out_stride,
         .rows = rows_,
         .cols = cols,
         .k = k_,
         .gating = {.kind = static_cast<GateKind>(Int(0, 2)), .scale = Coin() ? 1.0f : 0.25f}},
        Input()};
    LaunchMatMulGated(launch, dtype, nullptr);
    launch.x = nullptr;
    launch.out = together.data();
    LaunchNormedMatMulGated(launch, dtype, nullptr);
    ASSERT_EQ(std::memcmp(apart.data(), together.data(), apart.size() * sizeof(uint16_t)), 0);
  }
}

// A product that is added to the residual, and one whose result a norm's delta is.
TEST_F(CudaNormedMatMulTest, AddedProductHasTheBitsOfADelta) {
  for (int round = 0; round < Rounds(60, 30); ++round) {
    const DType dtype = ChangeTypeAndMachine();
    const int rows = round % 2 == 0 ? Int(1, 8) : Int(1, kAddedRows), n = Int(1, 150);
    k_ = 8 * (Int(0, 3) == 0 ? Int(300, 500) : Int(1, 60));
    const int64_t stride = n + Int(0, 3);
    const float scale = Coin() ? 1.0f : 0.22f;
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << rows << " x " << k_ << " by "
                                      << n << ", " << Name(dtype));
    const DeviceArray<uint16_t> w = Weights(n, dtype), x = Weights(rows, dtype);
    DeviceArray<float> bias(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) bias[static_cast<size_t>(i)] = Normal(1);
    DeviceArray<float> delta(static_cast<size_t>(rows * stride)), expected(delta.size());
    MatMulLaunch launch = {.x = x.data(),
                           .x_stride = k_,
                           .w = w.data(),
                           .bias = Coin() ? bias.data() : nullptr,
                           .out = delta.data(),
                           .out_stride = stride,
                           .rows = rows,
                           .n = n,
                           .k = k_};
    LaunchMatMul(launch, dtype, nullptr, MatMulShape::kSmallTile);
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < n; ++i) expected[static_cast<size_t>(row * stride + i)] = Normal(3);
    }
    DeviceArray<float> residual = expected;
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(row * stride + i);
        expected[at] = std::fma(delta[at], scale, expected[at]);
      }
    }
    launch.out = residual.data();
    launch.added_scale = scale;
    LaunchMatMul(launch, dtype, nullptr);
    // Between the rows, too.
    ASSERT_EQ(std::memcmp(residual.data(), expected.data(), residual.size() * sizeof(float)), 0);
    ASSERT_TRUE(residual.MarginsIntact());
  }
}

TEST(NormsInProductTest, FewAndShortRows) {
  EXPECT_TRUE(NormsInProduct(4, 896));
  EXPECT_TRUE(NormsInProduct(1, 4096));
  EXPECT_FALSE(NormsInProduct(5, 896));
  EXPECT_FALSE(NormsInProduct(2, 3584));
  EXPECT_FALSE(NormsInProduct(1, 5120));
  EXPECT_FALSE(NormsInProduct(9, 8));
  // Parts of 256, of which each row has three.
  EXPECT_FALSE(NormsInProduct(7, 520));
}

}  // namespace
}  // namespace baton::backend::cuda
