// The kernels that pass over rows once, on the emulated device, against references in double.
#include "common/backend/cuda/kernels/elementwise.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

class CudaElementwiseTest : public KernelTest {
 protected:
  int Width() { return 8 * (Int(0, 3) == 0 ? Int(1, 700) : Int(1, 40)); }
  int64_t Stride(int cols) { return cols + 8 * Int(0, 2); }
};

TEST_F(CudaElementwiseTest, GatherPicksRowsOfAnyType) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 60; ++round) {
    ChangeMachine();
    const DType dtype = AnyDType();
    const int cols = Width(), table_rows = Int(1, 9), rows = Int(1, 7);
    const int64_t table_stride = Stride(cols), out_stride = Stride(cols);
    const float scale = Coin() ? 1.0f : std::exp(Normal());
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << rows << " x " << cols << ", " << Name(dtype));
    DeviceArray<std::byte> table(static_cast<size_t>(table_rows * table_stride) * SizeOf(dtype));
    const auto at = [&](int row, int col) {
      return table.data() + static_cast<size_t>(row * table_stride + col) * SizeOf(dtype);
    };
    for (int row = 0; row < table_rows; ++row) {
      for (int col = 0; col < cols; ++col) FromF32(Normal(), dtype, at(row, col));
    }
    std::vector<int32_t> row_of;
    for (int row = 0; row < rows; ++row) row_of.push_back(Int(0, table_rows - 1));
    DeviceArray<float> out(static_cast<size_t>(rows * out_stride));
    LaunchGather({.table = table.data(),
                  .table_stride = table_stride,
                  .row_of = row_of.data(),
                  .out = out.data(),
                  .out_stride = out_stride,
                  .cols = cols,
                  .scale = scale},
                 dtype, rows, nullptr);
    ASSERT_TRUE(out.MarginsIntact());
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < out_stride; ++col) {
        const float found = out[static_cast<size_t>(row * out_stride + col)];
        if (col >= cols) {
          ASSERT_TRUE(std::isnan(found)) << "wrote between rows";
        } else {
          ASSERT_EQ(found, ToF32(at(row_of[static_cast<size_t>(row)], col), dtype) * scale);
        }
      }
    }
  }
}

// What is beyond float16's range is infinite there.
bool IsNear(float found, double expected, double tolerance, DType dtype) {
  constexpr double kFirstInfinite = 65'520;
  if (!std::isinf(found)) return std::fabs(static_cast<double>(found) - expected) <= tolerance;
  return dtype == DType::kF16 && std::signbit(found) == std::signbit(expected) &&
         std::fabs(expected) + tolerance >= kFirstInfinite;
}

TEST_F(CudaElementwiseTest, GateEqualsTheReference) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 90; ++round) {
    ChangeMachine();
    const DType dtype = AnyDType();
    const Gating gating = {.kind = static_cast<GateKind>(Int(0, kGateKinds - 1)),
                           .scale = std::ldexp(1.0f, Int(-4, 2))};
    const int cols = Width(), rows = Int(1, 7);
    const bool has_gate = gating.kind != GateKind::kSquaredRelu;
    const int64_t in_stride = Stride(has_gate ? 2 * cols : cols), out_stride = Stride(cols);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << rows << " x " << cols << ", "
                                      << Name(dtype) << ", gate " << static_cast<int>(gating.kind));
    DeviceArray<float> gate_up(static_cast<size_t>(rows * in_stride));
    DeviceArray<std::byte> out(static_cast<size_t>(rows * out_stride) * SizeOf(dtype));
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < (has_gate ? 2 : 1) * cols; ++col) {
        gate_up[static_cast<size_t>(row * in_stride + col)] = Normal(Int(0, 9) == 0 ? 40 : 3);
      }
    }
    LaunchGate({.gate_up = gate_up.data(),
                .gate_up_stride = in_stride,
                .out = out.data(),
                .out_stride = out_stride,
                .cols = cols,
                .gating = gating},
               dtype, rows, nullptr);
    ASSERT_TRUE(out.MarginsIntact());
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < out_stride; ++col) {
        const float found =
            ToF32(&out[static_cast<size_t>(row * out_stride + col) * SizeOf(dtype)], dtype);
        if (col >= cols) {
          ASSERT_TRUE(std::isnan(found)) << "wrote between rows";
          continue;
        }
        double gate = gate_up[static_cast<size_t>(row * in_stride + col)];
        if (!has_gate) {
          const double positive = std::max(0.0, gate);
          const double expected = positive * positive * static_cast<double>(gating.scale);
          ASSERT_TRUE(IsNear(found, expected, (Precision(dtype) + 1e-6) * expected + 3e-8, dtype))
              << gate << ": " << found << ", expected " << expected;
          continue;
        }
        double up = gate_up[static_cast<size_t>(row * in_stride + col + cols)];
        double exponent = -gate;  // of e
        if (gating.kind == GateKind::kGeluTanh) {
          exponent = -2 * std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
        } else if (gating.kind == GateKind::kClampedSwiglu) {
          gate = std::min(gate, 7.0);
          up = std::clamp(up, -7.0, 7.0) + 1;
          exponent = -1.702 * gate;
        }
        const double expected =
            gate / (1 + std::exp(exponent)) * up * static_cast<double>(gating.scale);
        // e^x is off by x 2^-24, relative; half's subnormals by 2^-25.
        const double relative = Precision(dtype) + 1e-6 + std::fabs(exponent) * 3e-7;
        ASSERT_TRUE(IsNear(found, expected, relative * std::fabs(expected) + 3e-8, dtype))
            << gate << ", " << up << ": " << found << ", expected " << expected;
      }
    }
  }
}

// Other factors than columns behind the gates': the same bits.
TEST_F(CudaElementwiseTest, FactorsMayLieApartFromTheirGates) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 20; ++round) {
    ChangeMachine();
    const DType dtype = AnyDType();
    const int cols = Width(), rows = Int(1, 5);
    const int64_t up_stride = Stride(cols);
    const Gating gating = {.kind = Coin() ? GateKind::kGeluTanh : GateKind::kSilu, .scale = 1};
    DeviceArray<float> gate_up(static_cast<size_t>(rows * 2 * cols));
    DeviceArray<float> up(static_cast<size_t>(rows * up_stride));
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < cols; ++col) {
        const auto at = static_cast<size_t>(row * 2 * cols + col);
        gate_up[at] = Normal(3);
        up[static_cast<size_t>(row * up_stride + col)] = gate_up[at + static_cast<size_t>(cols)] =
            Normal(3);
      }
    }
    const size_t bytes = static_cast<size_t>(rows * cols) * SizeOf(dtype);
    DeviceArray<std::byte> apart(bytes), together(bytes);
    GateLaunch launch = {.gate_up = gate_up.data(),
                         .gate_up_stride = 2 * cols,
                         .out = together.data(),
                         .out_stride = cols,
                         .cols = cols,
                         .gating = gating};
    LaunchGate(launch, dtype, rows, nullptr);
    launch.up = up.data();
    launch.up_stride = up_stride;
    launch.out = apart.data();
    LaunchGate(launch, dtype, rows, nullptr);
    ASSERT_TRUE(apart.MarginsIntact());
    ASSERT_EQ(std::memcmp(apart.data(), together.data(), bytes), 0) << "round " << round;
  }
}

// Whose cubes and exponentials are beyond float32, too.
TEST_F(CudaElementwiseTest, GateOfExtremes) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  for (const bool gelu : {false, true}) {
    DeviceArray<float> gate_up(std::vector<float>{-largest,
                                                  -1e30f,
                                                  -1e13f,
                                                  -200,
                                                  -90,
                                                  0,
                                                  90,
                                                  1e4f,
                                                  1e13f,
                                                  1e20f,
                                                  1e30f,
                                                  largest,
                                                  std::nanf(""),
                                                  infinity,
                                                  -0.0f,
                                                  1e-30f,  //
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1,
                                                  1});
    DeviceArray<float> out(16);
    LaunchGate({.gate_up = gate_up.data(),
                .gate_up_stride = 32,
                .out = out.data(),
                .out_stride = 16,
                .cols = 16,
                .gating = {.kind = gelu ? GateKind::kGeluTanh : GateKind::kSilu}},
               DType::kF32, 1, nullptr);
    for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(out[i], 0, 1e-30) << gate_up[i];
    for (size_t i = 6; i < 12; ++i) EXPECT_EQ(out[i], gate_up[i]);
    EXPECT_TRUE(std::isnan(out[12]));
    EXPECT_EQ(out[13], infinity);
    EXPECT_EQ(out[14], 0);
    EXPECT_EQ(out[15], 0.5f * 1e-30f);
  }
}

TEST_F(CudaElementwiseTest, ClampedGateOfExtremes) {
  const float infinity = std::numeric_limits<float>::infinity();
  const DeviceArray<float> gate_up(std::vector<float>{infinity, -infinity, std::nanf(""), 100, 100,
                                                      100, 1e-30f, -1e30f, 100, 100, 100, 100,
                                                      infinity, -infinity, std::nanf(""), -3});
  DeviceArray<float> out(8);
  LaunchGate({.gate_up = gate_up.data(),
              .gate_up_stride = 16,
              .out = out.data(),
              .out_stride = 8,
              .cols = 8,
              .gating = {.kind = GateKind::kClampedSwiglu}},
             DType::kF32, 1, nullptr);
  const float most = 7 / (1 + std::exp(-1.702f * 7));
  EXPECT_FLOAT_EQ(out[0], most * 8);
  EXPECT_TRUE(std::isnan(out[1])) << "infinity by infinity, as elsewhere";
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_FLOAT_EQ(out[3], most * 8);
  EXPECT_FLOAT_EQ(out[4], most * 8);
  EXPECT_FLOAT_EQ(out[5], most * -6);
  EXPECT_TRUE(std::isnan(out[6]));
  EXPECT_EQ(out[7], 0);
}

TEST_F(CudaElementwiseTest, SquaredReluOfExtremes) {
  const float infinity = std::numeric_limits<float>::infinity();
  const DeviceArray<float> up(
      std::vector<float>{infinity, -infinity, std::nanf(""), -1e30f, 1e30f, -0.0f, 3, 1e-30f});
  DeviceArray<float> out(8);
  LaunchGate({.gate_up = up.data(),
              .gate_up_stride = 8,
              .out = out.data(),
              .out_stride = 8,
              .cols = 8,
              .gating = {.kind = GateKind::kSquaredRelu, .scale = 0.5f}},
             DType::kF32, 1, nullptr);
  EXPECT_EQ(out[0], infinity);
  EXPECT_EQ(out[1], 0);
  EXPECT_TRUE(std::isnan(out[2]));
  EXPECT_EQ(out[3], 0);
  EXPECT_EQ(out[4], infinity);
  EXPECT_EQ(out[5], 0);
  EXPECT_EQ(out[6], 4.5f);
  EXPECT_EQ(out[7], 0) << "below float32";
}

// Rows whose last columns are fewer than a thread's, as a vocabulary's may be.
TEST_F(CudaElementwiseTest, ScaleLogitsEqualsTheReference) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 60; ++round) {
    ChangeMachine();
    const int cols = Int(1, Coin() ? 40 : 3000), rows = Int(1, 4);
    const int64_t stride = (cols + 7) / 8 * 8 + 8 * Int(0, 2);
    const float scale = Coin() ? 1.0f : std::exp(Normal()), cap = Coin() ? 0.0f : 30.0f;
    DeviceArray<float> logits(static_cast<size_t>(rows * stride));
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < cols; ++i) {
        logits[static_cast<size_t>(row * stride + i)] = Normal(Coin() ? 1 : 60);
      }
    }
    const std::vector<float> before = logits.values();
    LaunchScaleLogits(
        {.logits = logits.data(), .stride = stride, .cols = cols, .scale = scale, .cap = cap}, rows,
        nullptr);
    ASSERT_TRUE(logits.MarginsIntact());
    for (size_t i = 0; i < logits.size(); ++i) {
      SCOPED_TRACE(::testing::Message() << "round " << round << ", element " << i);
      if (i % static_cast<size_t>(stride) >= static_cast<size_t>(cols)) {
        ASSERT_EQ(std::memcmp(&logits[i], &before[i], sizeof(float)), 0) << "wrote between rows";
      } else if (cap == 0) {
        ASSERT_EQ(logits[i], before[i] * scale);
      } else {
        const double x = static_cast<double>(before[i]) * static_cast<double>(scale);
        ASSERT_NEAR(static_cast<double>(logits[i]), 30 * std::tanh(x / 30), 30 * 3e-7) << x;
      }
    }
  }
}

TEST_F(CudaElementwiseTest, CappedExtremes) {
  const float infinity = std::numeric_limits<float>::infinity();
  DeviceArray<float> logits(
      std::vector<float>{0, -0.0f, 1e30f, -1e30f, infinity, -infinity, std::nanf(""), 1e-4f});
  LaunchScaleLogits({.logits = logits.data(), .stride = 8, .cols = 8, .scale = 1, .cap = 50}, 1,
                    nullptr);
  EXPECT_EQ(logits[0], 0);
  EXPECT_EQ(logits[1], 0);
  EXPECT_EQ(logits[2], 50);
  EXPECT_EQ(logits[3], -50);
  EXPECT_EQ(logits[4], 50);
  EXPECT_EQ(logits[5], -50);
  EXPECT_TRUE(std::isnan(logits[6]));
  EXPECT_NEAR(logits[7], 1e-4, 50 * 1.2e-7);
}

TEST_F(CudaElementwiseTest, AddBiasAddsToEachRow) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 30; ++round) {
    ChangeMachine();
    const int cols = Width(), rows = Int(1, 7);
    const int64_t stride = Stride(cols);
    DeviceArray<float> x(static_cast<size_t>(rows * stride)), bias(static_cast<size_t>(cols));
    for (int i = 0; i < cols; ++i) bias[static_cast<size_t>(i)] = Normal();
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < cols; ++i) x[static_cast<size_t>(row * stride + i)] = Normal();
    }
    const std::vector<float> before = x.values();
    LaunchAddBias({.x = x.data(), .x_stride = stride, .bias = bias.data(), .cols = cols}, rows,
                  nullptr);
    ASSERT_TRUE(x.MarginsIntact());
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t col = i % static_cast<size_t>(stride);
      if (col >= static_cast<size_t>(cols)) {
        ASSERT_TRUE(std::isnan(x[i])) << "wrote between rows";
      } else {
        ASSERT_EQ(x[i], before[i] + bias[col]) << "round " << round << ", element " << i;
      }
    }
  }
}

TEST_F(CudaElementwiseTest, NoRowsAreNothing) {
  LaunchGather({}, DType::kF16, 0, nullptr);
  LaunchGate({}, DType::kF16, 0, nullptr);
  LaunchScaleLogits({}, 0, nullptr);
  LaunchAddBias({}, 0, nullptr);
}

}  // namespace
}  // namespace baton::backend::cuda
