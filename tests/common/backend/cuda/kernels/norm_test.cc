// The norm kernels on the emulated device against a reference in double over random shapes.
#include "common/backend/cuda/kernels/norm.h"

#include <cmath>

#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

struct Case {
  int rows, cols;
  int64_t stride;  // of everything
  DType dtype;
  float eps;
  bool has_delta;
  std::vector<float> x, delta, weight;
};

struct Result {
  std::vector<float> x;        // as it is afterwards, [rows, cols]
  std::vector<std::byte> out;  // [rows, cols]
};

class CudaNormTest : public KernelTest {
 protected:
  Case RandomCase() {
    Case c;
    c.rows = Int(1, 5);
    c.cols = 8 * (Int(0, 3) == 0 ? Int(1, 1500) : Int(1, 200));
    c.stride = c.cols + 8 * Int(0, 2);
    c.dtype = AnyDType();
    c.eps = Coin() ? 1e-6f : 1e-5f;
    c.has_delta = Coin();
    const size_t size = static_cast<size_t>(c.rows) * static_cast<size_t>(c.cols);
    const float spread = std::exp(Normal(2));
    for (size_t i = 0; i < size; ++i) c.x.push_back(Normal(spread));
    for (size_t i = 0; i < size; ++i) c.delta.push_back(Normal(spread));
    for (int i = 0; i < c.cols; ++i) c.weight.push_back(1 + Normal(0.2f));
    return c;
  }

  // Rows [first, first + count) of the case; what lies between rows is poisoned.
  static Result Run(const Case& c, int first, int count) {
    const size_t element = SizeOf(c.dtype);
    const size_t spread = static_cast<size_t>(count) * static_cast<size_t>(c.stride);
    DeviceArray<float> x(spread), delta(spread), weight(c.weight);
    DeviceArray<std::byte> out(spread * element);
    for (int row = 0; row < count; ++row) {
      for (int i = 0; i < c.cols; ++i) {
        const auto to = static_cast<size_t>(row * c.stride + i);
        x[to] = c.x[static_cast<size_t>((first + row) * c.cols + i)];
        delta[to] = c.delta[static_cast<size_t>((first + row) * c.cols + i)];
      }
    }
    NormLaunch launch = {};
    launch.x = x.data();
    launch.delta = c.has_delta ? delta.data() : nullptr;
    launch.weight = weight.data();
    launch.out = out.data();
    launch.x_stride = launch.delta_stride = launch.out_stride = c.stride;
    launch.cols = c.cols;
    launch.eps = c.eps;
    LaunchNorm(launch, c.dtype, count, nullptr);
    EXPECT_TRUE(x.MarginsIntact() && out.MarginsIntact());
    Result result;
    for (int row = 0; row < count; ++row) {
      for (int i = 0; i < c.stride; ++i) {
        const auto at = static_cast<size_t>(row * c.stride + i);
        if (i < c.cols) {
          result.x.push_back(x[at]);
          result.out.insert(result.out.end(), out.data() + at * element,
                            out.data() + (at + 1) * element);
        } else {
          EXPECT_TRUE(std::isnan(x[at]) && std::isnan(ToF32(&out[at * element], c.dtype)))
              << "wrote between rows";
        }
      }
    }
    return result;
  }
};

TEST_F(CudaNormTest, EqualsTheReference) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 150; ++round) {
    ChangeMachine();
    const Case c = RandomCase();
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << c.rows << " x " << c.cols
                                      << ", " << Name(c.dtype) << ", delta " << c.has_delta);
    const Result found = Run(c, 0, c.rows);
    for (int row = 0; row < c.rows; ++row) {
      std::vector<float> x;
      double squares = 0;
      for (int i = 0; i < c.cols; ++i) {
        const auto at = static_cast<size_t>(row * c.cols + i);
        x.push_back(c.has_delta ? c.x[at] + c.delta[at] : c.x[at]);
        squares += static_cast<double>(x.back()) * static_cast<double>(x.back());
        ASSERT_EQ(found.x[at], x.back()) << "residual, column " << i;
      }
      const double scale = 1 / std::sqrt(squares / c.cols + static_cast<double>(c.eps));
      for (int i = 0; i < c.cols; ++i) {
        const auto at = static_cast<size_t>(row * c.cols + i);
        const double expected = static_cast<double>(x[static_cast<size_t>(i)]) * scale *
                                static_cast<double>(c.weight[static_cast<size_t>(i)]);
        ASSERT_NEAR(static_cast<double>(ToF32(&found.out[at * SizeOf(c.dtype)], c.dtype)), expected,
                    (Precision(c.dtype) + 2e-6) * std::fabs(expected) + 6e-8)
            << "row " << row << ", column " << i;
      }
    }
  }
}

TEST_F(CudaNormTest, ARowIsTheSameAloneAndInAnyOrderOfWarps) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 30; ++round) {
    const Case c = RandomCase();
    ChangeMachine();
    const Result all = Run(c, 0, c.rows);
    const int row = Int(0, c.rows - 1);
    ChangeMachine();
    const Result one = Run(c, row, 1);
    const auto bytes = static_cast<size_t>(c.cols) * SizeOf(c.dtype);
    ASSERT_EQ(std::memcmp(one.out.data(), all.out.data() + static_cast<size_t>(row) * bytes, bytes),
              0)
        << "round " << round;
  }
}

TEST_F(CudaNormTest, ANaNStaysInItsRow) {
  Case c = RandomCase();
  c.rows = 2;
  c.x.assign(static_cast<size_t>(2 * c.cols), 1.0f);
  c.delta = c.x;
  c.x[static_cast<size_t>(c.cols) + 3] = std::nanf("");
  const Result found = Run(c, 0, 2);
  for (int i = 0; i < 2 * c.cols; ++i) {
    const float value = ToF32(&found.out[static_cast<size_t>(i) * SizeOf(c.dtype)], c.dtype);
    ASSERT_EQ(std::isnan(value), i >= c.cols) << i;
  }
}

TEST_F(CudaNormTest, NoRowsAreNothing) { LaunchNorm(NormLaunch{}, DType::kF16, 0, nullptr); }

}  // namespace
}  // namespace baton::backend::cuda
