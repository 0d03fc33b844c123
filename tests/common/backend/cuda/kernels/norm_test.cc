// The norm kernels on the emulated device against a reference in double over random shapes.
#include "common/backend/cuda/kernels/norm.h"

#include <cmath>

#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

enum class Delta { kNone, kPlain, kScaled, kNormed };

struct Case {
  int rows, cols;
  int64_t stride;  // of everything
  DType dtype;
  float eps;
  Delta form;
  float delta_scale;
  bool weighted, in_place;
  std::vector<float> x, delta, delta_weight, weight;
  bool has_delta() const { return form != Delta::kNone; }
};

struct Result {
  std::vector<float> x;        // as it is afterwards, [rows, cols]
  std::vector<std::byte> out;  // [rows, cols]
};

class CudaNormTest : public KernelTest {
 protected:
  // The first twelve rounds have every kernel once: drawn alone, one may be missing.
  Case RandomCase(int round = 12) {
    Case c;
    c.rows = Int(1, 5);
    c.cols = 8 * (Int(0, 3) == 0 ? Int(1, 1500) : Int(1, 200));
    c.stride = c.cols + 8 * Int(0, 2);
    c.form = static_cast<Delta>(Int(0, 3));
    if (round < 12) c.form = round / 3 % 2 == 0 ? Delta::kNormed : static_cast<Delta>(Int(0, 2));
    c.delta_scale = c.form == Delta::kScaled   ? 0.22f
                    : c.form == Delta::kNormed ? std::ldexp(1.0f, Int(-3, 3))
                                               : 1.0f;
    c.weighted = round < 12 ? round / 6 == 0 : Int(0, 3) > 0;
    c.in_place = round >= 12 && Int(0, 3) == 0;
    c.dtype = c.in_place   ? DType::kF32
              : round < 12 ? static_cast<DType>(round % 3)
                           : AnyDType();
    c.eps = Coin() ? 1e-6f : 1e-5f;
    const size_t size = static_cast<size_t>(c.rows) * static_cast<size_t>(c.cols);
    const float spread = std::exp(Normal(2));
    for (size_t i = 0; i < size; ++i) c.x.push_back(Normal(spread));
    for (size_t i = 0; i < size; ++i) c.delta.push_back(Normal(spread));
    for (int i = 0; i < c.cols; ++i) c.weight.push_back(1 + Normal(0.2f));
    for (int i = 0; i < c.cols; ++i) c.delta_weight.push_back(1 + Normal(0.2f));
    return c;
  }

  // Rows [first, first + count) of the case; what lies between rows is poisoned.
  static Result Run(const Case& c, int first, int count) {
    const size_t element = SizeOf(c.dtype);
    const size_t spread = static_cast<size_t>(count) * static_cast<size_t>(c.stride);
    DeviceArray<float> x(spread), delta(spread), weight(c.weight), delta_weight(c.delta_weight);
    DeviceArray<std::byte> apart(spread * element);
    for (int row = 0; row < count; ++row) {
      for (int i = 0; i < c.cols; ++i) {
        const auto to = static_cast<size_t>(row * c.stride + i);
        x[to] = c.x[static_cast<size_t>((first + row) * c.cols + i)];
        delta[to] = c.delta[static_cast<size_t>((first + row) * c.cols + i)];
      }
    }
    const auto* out = c.in_place ? reinterpret_cast<std::byte*>(x.data()) : apart.data();
    NormLaunch launch = {};
    launch.x = x.data();
    launch.delta = c.has_delta() ? delta.data() : nullptr;
    launch.delta_scale = c.delta_scale;
    launch.delta_weight = c.form == Delta::kNormed ? delta_weight.data() : nullptr;
    launch.weight = c.weighted ? weight.data() : nullptr;
    launch.out = const_cast<std::byte*>(out);
    launch.x_stride = launch.delta_stride = launch.out_stride = c.stride;
    launch.cols = c.cols;
    launch.eps = c.eps;
    LaunchNorm(launch, c.dtype, count, nullptr);
    EXPECT_TRUE(x.MarginsIntact() && apart.MarginsIntact());
    Result result;
    for (int row = 0; row < count; ++row) {
      for (int i = 0; i < c.stride; ++i) {
        const auto at = static_cast<size_t>(row * c.stride + i);
        if (i < c.cols) {
          result.x.push_back(x[at]);
          result.out.insert(result.out.end(), out + at * element, out + (at + 1) * element);
        } else {
          EXPECT_TRUE(std::isnan(x[at]) && std::isnan(ToF32(&out[at * element], c.dtype)))
              << "wrote between rows";
        }
      }
    }
    return result;
  }

  static double InverseRms(const std::vector<double>& x, float eps) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    return 1 / std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(eps));
  }
  // What is added to a row, in double.
  static std::vector<double> Added(const Case& c, int row) {
    std::vector<double> delta;
    for (int i = 0; i < c.cols; ++i) {
      delta.push_back(c.has_delta()
                          ? static_cast<double>(c.delta[static_cast<size_t>(row * c.cols + i)]) *
                                static_cast<double>(c.delta_scale)
                          : 0);
    }
    if (c.form != Delta::kNormed) return delta;
    const double scale = InverseRms(delta, c.eps);
    for (size_t i = 0; i < delta.size(); ++i) {
      delta[i] *= scale * static_cast<double>(c.delta_weight[i]);
    }
    return delta;
  }
};

TEST_F(CudaNormTest, EqualsTheReference) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(300, 100); ++round) {
    ChangeMachine();
    const Case c = RandomCase(round);
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << c.rows << " x " << c.cols << ", " << Name(c.dtype)
                 << ", delta " << static_cast<int>(c.form) << ", weighted " << c.weighted
                 << ", in place " << c.in_place);
    const Result found = Run(c, 0, c.rows);
    for (int row = 0; row < c.rows; ++row) {
      const std::vector<double> added = Added(c, row);
      std::vector<double> x;
      for (int i = 0; i < c.cols; ++i) {
        const auto at = static_cast<size_t>(row * c.cols + i);
        const double before = static_cast<double>(c.x[at]), to_add = added[static_cast<size_t>(i)];
        x.push_back(c.form == Delta::kNone ? before
                    : c.form == Delta::kNormed
                        ? before + to_add
                        : static_cast<double>(std::fma(c.delta[at], c.delta_scale, c.x[at])));
        if (c.in_place) continue;
        const double residual = static_cast<double>(found.x[at]);
        if (c.form == Delta::kNormed) {
          ASSERT_NEAR(residual, x.back(), 1e-6 * (std::fabs(before) + 4 * std::fabs(to_add)));
        } else {
          ASSERT_EQ(found.x[at], static_cast<float>(x.back())) << "residual, column " << i;
        }
        x.back() = residual;
      }
      const double scale = c.weighted ? InverseRms(x, c.eps) : 1;
      for (int i = 0; i < c.cols; ++i) {
        const auto at = static_cast<size_t>(row * c.cols + i);
        const double weight =
            c.weighted ? static_cast<double>(c.weight[static_cast<size_t>(i)]) : 1;
        const double expected = x[static_cast<size_t>(i)] * scale * weight;
        // Sums that nearly cancel, where the sum itself is not there to compare with.
        const double terms =
            std::fabs(static_cast<double>(c.x[at])) + 4 * std::fabs(added[static_cast<size_t>(i)]);
        const double sum_error = c.in_place ? 1e-6 * terms * scale * std::fabs(weight) : 0;
        const double value = static_cast<double>(ToF32(&found.out[at * SizeOf(c.dtype)], c.dtype));
        if (c.dtype == DType::kF16 && std::fabs(expected) > 65'000) {
          // Beyond float16 a residual without a norm is infinite.
          ASSERT_TRUE(std::isinf(value) || std::fabs(value) > 64'000);
          continue;
        }
        ASSERT_NEAR(value, expected,
                    (Precision(c.dtype) + 2e-6) * std::fabs(expected) + sum_error + 6e-8)
            << "row " << row << ", column " << i;
      }
    }
  }
}

// A norm of q over all heads, in place, in rows that hold q, k and v.
TEST_F(CudaNormTest, ASliceOfWiderRowsIsNormedInPlace) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 20; ++round) {
    ChangeMachine();
    const int rows = Int(1, 5), before = 8 * Int(0, 20), cols = 8 * Int(1, 1200);
    const int stride = before + cols + 8 * Int(0, 20);
    std::vector<float> values(static_cast<size_t>(rows * stride));
    for (float& value : values) value = Normal();
    std::vector<float> weights(static_cast<size_t>(cols));
    for (float& value : weights) value = Normal();
    DeviceArray<float> all(values), weight(weights);
    NormLaunch launch = {};
    launch.x = all.data() + before;
    launch.out = launch.x;
    launch.x_stride = launch.out_stride = stride;
    launch.weight = weight.data();
    launch.cols = cols;
    launch.eps = 1e-5f;
    LaunchNorm(launch, DType::kF32, rows, nullptr);
    ASSERT_TRUE(all.MarginsIntact());
    for (int row = 0; row < rows; ++row) {
      const auto begin = values.begin() + row * stride + before;
      const double scale = InverseRms(std::vector<double>(begin, begin + cols), 1e-5f);
      for (int i = 0; i < stride; ++i) {
        const auto at = static_cast<size_t>(row * stride + i);
        const int column = i - before;
        if (column < 0 || column >= cols) {
          ASSERT_EQ(all[at], values[at]) << "beside the slice, column " << i;
          continue;
        }
        const double expected = static_cast<double>(values[at]) * scale *
                                static_cast<double>(weights[static_cast<size_t>(column)]);
        ASSERT_NEAR(static_cast<double>(all[at]), expected, 2e-6 * std::fabs(expected) + 1e-12);
      }
    }
  }
}

// What post-norms may replace: with a scale of 1, and of a power of two, both forms have the bits
// of the sum.
TEST_F(CudaNormTest, AScaleOfAPowerOfTwoIsExact) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 20; ++round) {
    Case c = RandomCase();
    c.form = Delta::kScaled;
    c.delta_scale = std::ldexp(1.0f, Int(-6, 6));
    Case plain = c;
    plain.form = Delta::kPlain;
    plain.delta_scale = 1;
    for (float& value : plain.delta) value *= c.delta_scale;
    const Result scaled = Run(c, 0, c.rows), whole = Run(plain, 0, c.rows);
    ASSERT_EQ(scaled.x, whole.x);
    ASSERT_EQ(scaled.out, whole.out);
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
  c.weighted = true;
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
