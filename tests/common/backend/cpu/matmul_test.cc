#include "tests/common/backend/cpu/test_backend.h"

namespace baton::backend {
namespace {

class MatMulTest : public ::testing::TestWithParam<Variant> {
 protected:
  MatMulTest() : backend_(Make(GetParam())), dtype_(backend_->activation_dtype()) {}

  std::vector<float> Multiply(const Tensor& x, const PackedMatrix& weight, const Buffer* bias) {
    Owned out(DType::kF32, x.rows, weight.out_features());
    backend_->MatMul(x, weight, bias, out);
    return out.Values();
  }

  std::unique_ptr<Backend> backend_;
  DType dtype_;
};

TEST_P(MatMulTest, IsTheProductOfRoundedOperands) {
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    Random random(seed);
    const int rows = random.Int(1, 70), n = random.Int(1, 200), n2 = random.Int(1, 40);
    const int k = random.Of({1, 7, 31, 32, 33, 64, 100, 255, 512, 700, 1030});
    const DType stored = random.Of({DType::kF32, DType::kBF16, DType::kF16});
    Owned a(stored, n, k, random.Floats(n * k)), b(DType::kBF16, n2, k, random.Floats(n2 * k));
    Owned x(dtype_, rows, k, random.Floats(rows * k));
    const std::vector<float> bias_values = random.Floats(n + n2);
    auto bias = BufferOf(*backend_, bias_values);
    auto packed = std::move(backend_->Pack({{a.tensor().data, stored, n, k},
                                            {b.tensor().data, DType::kBF16, n2, k}}))
                      .value();
    std::vector<float> w = Rounded(a.Values(), dtype_);
    const std::vector<float> w2 = Rounded(b.Values(), dtype_);
    w.insert(w.end(), w2.begin(), w2.end());
    const std::vector<float> xs = x.Values();
    const std::vector<float> got = Multiply(x, *packed, seed % 3 == 0 ? nullptr : bias.get());
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < n + n2; ++c) {
        double sum = 0, size = 1;
        for (int i = 0; i < k; ++i) {
          sum += double{xs[r * k + i]} * w[c * k + i];
          size += std::abs(double{xs[r * k + i]} * w[c * k + i]);
        }
        if (seed % 3 != 0) sum += bias_values[c];
        ASSERT_NEAR(got[r * (n + n2) + c], sum, 1e-6 * size) << r << " " << c << " k " << k;
      }
    }
  }
}

// The promise that decode, prefill and any batch give the same bits.
TEST_P(MatMulTest, EveryRowIsTheSameInEveryBatch) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 5); ++seed) {
    Random random(seed);
    const int n = random.Of({17, 64, 130, 320, 448}), k = random.Of({48, 96, 500, 896, 1600});
    const int most = 300;
    Owned w(DType::kF32, n, k, random.Floats(n * k));
    Owned x(dtype_, most, k, random.Floats(most * k));
    auto bias = BufferOf(*backend_, random.Floats(n));
    auto packed = std::move(backend_->Pack({{w.tensor().data, DType::kF32, n, k}})).value();
    std::vector<float> alone;
    for (int r = 0; r < most; ++r) {
      const std::vector<float> row = Multiply(x.Rows(r, 1), *packed, bias.get());
      alone.insert(alone.end(), row.begin(), row.end());
    }
    for (int trial = 0; trial < 12; ++trial) {
      const int rows = trial == 0 ? most : trial < 5 ? random.Int(2, 40) : random.Int(1, most);
      const int first = random.Int(0, most - rows);
      const std::vector<float> got = Multiply(x.Rows(first, rows), *packed, bias.get());
      ExpectSame(
          got, {alone.begin() + first * n, alone.begin() + (first + rows) * n},
          "rows " + std::to_string(rows) + " n " + std::to_string(n) + " k " + std::to_string(k));
    }
  }
}

TEST_P(MatMulTest, ThreadsDoNotShow) {
  Variant alone = GetParam();
  alone.threads = 1;
  auto other = Make(alone);
  for (uint32_t seed = 1; seed <= 4; ++seed) {
    Random random(seed);
    const int n = random.Int(1, 700), k = random.Int(1, 900), rows = random.Int(1, 200);
    Owned w(DType::kF32, n, k, random.Floats(n * k));
    Owned x(dtype_, rows, k, random.Floats(rows * k));
    auto packed = std::move(backend_->Pack({{w.tensor().data, DType::kF32, n, k}})).value();
    auto other_packed = std::move(other->Pack({{w.tensor().data, DType::kF32, n, k}})).value();
    Owned out(DType::kF32, rows, n);
    other->MatMul(x, *other_packed, nullptr, out);
    ExpectSame(Multiply(x, *packed, nullptr), out.Values(), "threads");
  }
}

TEST_P(MatMulTest, StridedOperands) {
  Random random(1);
  const int n = 100, k = 64, rows = 9;
  Owned w(DType::kF32, n, k, random.Floats(n * k));
  Owned x(dtype_, rows, 2 * k, random.Floats(rows * 2 * k));
  auto packed = std::move(backend_->Pack({{w.tensor().data, DType::kF32, n, k}})).value();
  Tensor left = x.tensor();
  left.cols = k;
  Owned wide(DType::kF32, rows, n, n + 13);
  backend_->MatMul(left, *packed, nullptr, wide);
  for (int r = 0; r < rows; ++r) {
    Tensor row = left;
    row.data = x.Rows(r, 1).data;
    row.rows = 1;
    const std::vector<float> values = wide.Values();
    ExpectSame(Multiply(row, *packed, nullptr),
               {values.begin() + r * n, values.begin() + (r + 1) * n}, "row");
  }
}

class Float32MatMulTest : public MatMulTest {};

TEST_P(Float32MatMulTest, WeightsOf16BitsStaySmallAndChangeNoBit) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 12); ++seed) {
    Random random(seed);
    const int rows = random.Int(1, 40), n = random.Int(1, 200), n2 = random.Int(1, 40);
    const int k = random.Of({1, 7, 33, 64, 255, 512, 700, 1030});
    const DType stored = random.Of({DType::kBF16, DType::kF16});
    Owned a(stored, n, k, random.Floats(n * k)), b(stored, n2, k, random.Floats(n2 * k));
    Owned wide_a(DType::kF32, n, k, a.Values()), wide_b(DType::kF32, n2, k, b.Values());
    Owned x(dtype_, rows, k, random.Floats(rows * k));
    auto bias = BufferOf(*backend_, random.Floats(n + n2));
    const auto pack = [&](const Owned& first, const Owned& second) {
      const Tensor &f = first.tensor(), &g = second.tensor();
      return std::move(backend_->Pack({{f.data, f.dtype, n, k}, {g.data, g.dtype, n2, k}})).value();
    };
    auto small = pack(a, b), large = pack(wide_a, wide_b), mixed = pack(a, wide_b);
    EXPECT_EQ(2 * small->size_bytes(), large->size_bytes());
    const std::vector<float> expected = Multiply(x, *large, bias.get());
    ExpectSame(Multiply(x, *small, bias.get()), expected, Name(stored));
    ExpectSame(Multiply(x, *mixed, bias.get()), expected, "both sizes");
  }
}

std::vector<Variant> Float32Variants() {
  std::vector<Variant> variants = AllVariants();
  std::erase_if(variants, [](const Variant& v) { return v.compute != Compute::kF32; });
  return variants;
}

INSTANTIATE_TEST_SUITE_P(AllVariants, Float32MatMulTest, ::testing::ValuesIn(Float32Variants()),
                         [](const auto& info) { return NameOf(info.param); });
INSTANTIATE_TEST_SUITE_P(AllVariants, MatMulTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace baton::backend
