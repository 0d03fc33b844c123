// The kernels that pass over rows once, on the emulated device, against references in double.
#include "common/backend/cuda/kernels/elementwise.h"

#include <cmath>
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
                  .cols = cols},
                 dtype, rows, nullptr);
    ASSERT_TRUE(out.MarginsIntact());
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < out_stride; ++col) {
        const float found = out[static_cast<size_t>(row * out_stride + col)];
        if (col >= cols) {
          ASSERT_TRUE(std::isnan(found)) << "wrote between rows";
        } else {
          ASSERT_EQ(found, ToF32(at(row_of[static_cast<size_t>(row)], col), dtype));
        }
      }
    }
  }
}

TEST_F(CudaElementwiseTest, SiluMulEqualsTheReference) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 60; ++round) {
    ChangeMachine();
    const DType dtype = AnyDType();
    const int cols = Width(), rows = Int(1, 7);
    const int64_t in_stride = Stride(2 * cols), out_stride = Stride(cols);
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << rows << " x " << cols << ", " << Name(dtype));
    DeviceArray<float> gate_up(static_cast<size_t>(rows * in_stride));
    DeviceArray<std::byte> out(static_cast<size_t>(rows * out_stride) * SizeOf(dtype));
    for (int row = 0; row < rows; ++row) {
      for (int col = 0; col < 2 * cols; ++col) {
        gate_up[static_cast<size_t>(row * in_stride + col)] = Normal(Int(0, 9) == 0 ? 40 : 3);
      }
    }
    LaunchSiluMul({.gate_up = gate_up.data(),
                   .gate_up_stride = in_stride,
                   .out = out.data(),
                   .out_stride = out_stride,
                   .cols = cols},
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
        const double gate = gate_up[static_cast<size_t>(row * in_stride + col)];
        const double up = gate_up[static_cast<size_t>(row * in_stride + col + cols)];
        const double expected = gate / (1 + std::exp(-gate)) * up;
        // e^-x is off by x 2^-24, relative; half's subnormals by 2^-25.
        const double relative = Precision(dtype) + 1e-6 + std::fabs(gate) * 1.5e-7;
        ASSERT_NEAR(static_cast<double>(found), expected, relative * std::fabs(expected) + 3e-8)
            << gate << ", " << up;
      }
    }
  }
}

TEST_F(CudaElementwiseTest, SiluMulOfExtremes) {
  const float infinity = std::numeric_limits<float>::infinity();
  DeviceArray<float> gate_up(std::vector<float>{-1e30f, -200, -90, 0, 90, 1e4f, std::nanf(""),
                                                infinity,  //
                                                1, 1, 1, 1, 1, 1, 1, 1});
  DeviceArray<float> out(8);
  LaunchSiluMul({.gate_up = gate_up.data(),
                 .gate_up_stride = 16,
                 .out = out.data(),
                 .out_stride = 8,
                 .cols = 8},
                DType::kF32, 1, nullptr);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(out[i], 0, 1e-30);
  EXPECT_EQ(out[4], 90);
  EXPECT_EQ(out[5], 1e4f);
  EXPECT_TRUE(std::isnan(out[6]));
  EXPECT_EQ(out[7], infinity);
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
  LaunchSiluMul({}, DType::kF16, 0, nullptr);
  LaunchAddBias({}, 0, nullptr);
}

}  // namespace
}  // namespace baton::backend::cuda
