// Products of weights of few bits with activations of 8 bits.
#include <algorithm>

#include "tests/common/backend/cpu/random_weights.h"
#include "tests/common/backend/cpu/test_backend.h"

namespace baton::backend {
namespace {

std::vector<int32_t> Shuffled(Random& random, int count) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (int i = count - 1; i > 0; --i) std::swap(order[i], order[random.Int(0, i)]);
  return order;
}

// x as blocks of 8 bits hold it, in the order of the matrix's columns.
std::vector<double> RoundedTo8Bits(const float* x, int cols, const std::vector<int32_t>& order) {
  std::vector<double> rounded(static_cast<size_t>(cols));
  for (int begin = 0; begin < cols; begin += 32) {
    const int end = std::min(cols, begin + 32);
    float largest = 0;
    const auto at = [&](int i) { return x[order.empty() ? i : order[i]]; };
    for (int i = begin; i < end; ++i) largest = std::max(largest, std::abs(at(i)));
    const float inverse = 127.0f / largest;
    for (int i = begin; i < end; ++i) {
      rounded[i] = largest == 0 ? 0 : double{std::nearbyint(at(i) * inverse)} * (largest / 127.0f);
    }
  }
  return rounded;
}

class QuantizedMatMulTest : public ::testing::TestWithParam<Variant> {
 protected:
  QuantizedMatMulTest() : backend_(Make(GetParam())), dtype_(backend_->activation_dtype()) {}

  std::unique_ptr<PackedMatrix> Pack(const std::vector<QuantizedHostMatrix>& stacked) {
    return std::move(backend_->PackQuantized(stacked)).value();
  }
  std::unique_ptr<PackedMatrix> PackAny(const std::vector<AnyHostMatrix>& stacked) {
    return std::move(backend_->PackAny(stacked)).value();
  }
  // Whether every element is the sum that the header states, taken in float64. w: [out, in].
  void ExpectProduct(const std::vector<float>& got, const std::vector<float>& xs, int k,
                     const std::vector<int32_t>& order, const std::vector<float>& w,
                     const std::vector<float>& bias) {
    const size_t in = static_cast<size_t>(k), out = w.size() / in, rows = xs.size() / in;
    ASSERT_EQ(got.size(), rows * out);
    for (size_t r = 0; r < rows; ++r) {
      const std::vector<double> rounded = RoundedTo8Bits(&xs[r * in], k, order);
      for (size_t c = 0; c < out; ++c) {
        double sum = 0, size = 1e-3;
        for (size_t i = 0; i < in; ++i) {
          const auto column = order.empty() ? i : static_cast<size_t>(order[i]);
          const double product = rounded[i] * w[c * in + column];
          sum += product;
          size += std::abs(product);
        }
        if (!bias.empty()) sum += bias[c];
        ASSERT_NEAR(got[r * out + c], sum, 1e-6 * size + 1e-6) << r << " " << c << " k " << k;
      }
    }
  }
  std::vector<float> Multiply(const Tensor& x, const PackedMatrix& weight, const Buffer* bias) {
    Owned out(DType::kF32, x.rows, weight.out_features());
    backend_->MatMul(x, weight, bias, out);
    return out.Values();
  }

  std::unique_ptr<Backend> backend_;
  DType dtype_;
};

// Against float64, with the activations rounded as the header says.
TEST_P(QuantizedMatMulTest, IsTheProductOfRoundedActivations) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 24); ++seed) {
    Random random(seed);
    const int bits = random.Of({4, 8}), rows = random.Int(1, 40), n = random.Int(1, 150);
    const int n2 = random.Int(1, 40), k = 2 * random.Int(1, 300);
    const int group = random.Of({32, 64, 128, k});
    const DType scales = random.Of({DType::kF16, DType::kBF16});
    const bool zeros = bits == 4 && seed % 2 == 0;
    const std::vector<int32_t> order = seed % 5 == 0 ? Shuffled(random, k) : std::vector<int32_t>{};
    const Weights a(random, bits, n, k, group, scales, zeros, order);
    const Weights b(random, bits, n2, k, group, scales, zeros && seed % 4 == 0, order);
    Owned x(dtype_, rows, k, random.Floats(rows * k));
    const std::vector<float> bias_values = random.Floats(n + n2);
    auto bias = BufferOf(*backend_, bias_values);
    auto packed = Pack({a.matrix, b.matrix});
    // Packed, not dequantised.
    ASSERT_LT(packed->size_bytes(), (n + n2 + 31) / 32 * 32 * ((k + 31) / 32 * 32) * 2 + 4 * k);
    std::vector<float> w = a.Dequantized();
    const std::vector<float> w2 = b.Dequantized(), xs = x.Values();
    w.insert(w.end(), w2.begin(), w2.end());
    const bool biased = seed % 3 != 0;
    const std::vector<float> got = Multiply(x, *packed, biased ? bias.get() : nullptr);
    SCOPED_TRACE(::testing::Message() << "bits " << bits << " group " << group);
    ExpectProduct(got, xs, k, order, w, biased ? bias_values : std::vector<float>{});
  }
}

TEST_P(QuantizedMatMulTest, IsTheProductWithSuperBlocks) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 24); ++seed) {
    Random random(seed);
    const int bits = random.Of({4, 5, 6}), rows = random.Int(1, 40), n = random.Int(1, 100);
    const int n2 = random.Int(1, 40), super_columns = random.Of({32, 256});
    const int k = super_columns * random.Int(1, super_columns == 256 ? 3 : 12);
    const SuperBlocks a(random, bits, n, k, super_columns), b(random, bits, n2, k, super_columns);
    Owned x(dtype_, rows, k, random.Floats(rows * k));
    const std::vector<float> bias_values = random.Floats(n + n2);
    auto bias = BufferOf(*backend_, bias_values);
    auto packed = PackAny({a.matrix, b.matrix});
    const int64_t panels = (n + n2 + 31) / 32;
    // Two bytes a block, four a super-block, or two.
    EXPECT_EQ(packed->size_bytes(),
              panels * 32 * (k * bits / 8 + k / 32 * 2 + k / super_columns * (bits == 6 ? 2 : 4)));
    std::vector<float> w = a.Dequantized();
    const std::vector<float> w2 = b.Dequantized();
    w.insert(w.end(), w2.begin(), w2.end());
    SCOPED_TRACE(::testing::Message() << "bits " << bits << " super-blocks of " << super_columns);
    ExpectProduct(Multiply(x, *packed, bias.get()), x.Values(), k, {}, w, bias_values);
  }
}

TEST_P(QuantizedMatMulTest, IsTheProductWithMxfp4) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 16); ++seed) {
    Random random(seed);
    const int rows = random.Int(1, 60), n = random.Int(1, 150), k = 2 * random.Int(1, 300);
    const Weights a = Weights::Fp4(random, n, k), b = Weights::Fp4(random, 16, k);
    Owned x(dtype_, rows, k, random.Floats(rows * k));
    const std::vector<float> bias_values = random.Floats(n + 16);
    auto bias = BufferOf(*backend_, bias_values);
    auto packed = Pack({a.matrix, b.matrix});
    // 4 bits a value and a byte a block.
    EXPECT_EQ(packed->size_bytes(), (n + 16 + 31) / 32 * 32 * ((k + 31) / 32) * 17);
    std::vector<float> w = a.Dequantized();
    const std::vector<float> w2 = b.Dequantized();
    w.insert(w.end(), w2.begin(), w2.end());
    ExpectProduct(Multiply(x, *packed, bias.get()), x.Values(), k, {}, w, bias_values);
  }
}

// The numbers that four bits stand for.
TEST(Fp4Test, CodesAreTheNumbersOfTheFormat) {
  const float numbers[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  Random random(1);
  Weights weights = Weights::Fp4(random, 1, 32);
  weights.scales[0] = 126 << 7;  // half of 1
  for (int i = 0; i < 16; ++i) {
    weights.values[static_cast<size_t>(i)] = static_cast<uint8_t>(i | i << 4);
  }
  const std::vector<float> values = weights.Dequantized();
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)], numbers[i / 2 % 8] * (i < 16 ? 1.0f : -1.0f)) << i;
  }
}

TEST_P(QuantizedMatMulTest, ItsRowsAreAnEmbedding) {
  ASSERT_TRUE(backend_->embeds_packed(dtype_));
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 24); ++seed) {
    Random random(seed);
    const int vocab = random.Int(1, 100);
    int d = 2 * random.Int(1, 300);
    std::unique_ptr<PackedMatrix> packed;
    std::vector<float> values;
    if (seed % 4 == 0) {
      const Weights ordered(random, 4, vocab, d, 32, DType::kF16, true, Shuffled(random, d));
      packed = Pack({ordered.matrix});
      values = ordered.Dequantized();
    } else {
      const AnyWeights weights(random, vocab, &d);
      packed = PackAny({weights.host});
      values = weights.Dequantized();
    }
    const Owned table(dtype_, vocab, d, values);
    std::vector<int32_t> tokens(static_cast<size_t>(random.Int(1, 20))), blocks(2);
    for (int32_t& token : tokens) token = random.Int(0, vocab - 1);
    const int count = static_cast<int>(tokens.size());
    const SequenceRows rows = {0, count, 0, blocks};
    auto batch = backend_->Upload({tokens, absl::MakeSpan(&rows, 1), {}});
    Owned out(DType::kF32, count, d), expected(DType::kF32, count, d);
    backend_->EmbedPacked(*batch, *packed, 1, out);
    backend_->Embed(*batch, table, 1, expected);
    ExpectSame(out.Values(), expected.Values(), "rows");
  }
}

// All products of a block at their largest, of one sign: no partial sum may overflow.
TEST_P(QuantizedMatMulTest, TheLargestSumsFit) {
  Random random(1);
  const int n = 40, k = 256;
  for (const int rows : {1, 5, 30}) {
    for (const float sign : {1.0f, -1.0f}) {
      Owned x(dtype_, rows, k, std::vector<float>(static_cast<size_t>(rows * k), sign));
      for (const bool most : {true, false}) {
        for (const int bits : {4, 8}) {
          for (const bool zeros : {false, true}) {
            if (bits == 8 && zeros) continue;
            Weights w(random, bits, n, k, 32, DType::kF16, zeros);
            std::fill(w.values.begin(), w.values.end(), static_cast<uint8_t>(most ? 255 : 0));
            if (zeros) std::fill(w.zeros.begin(), w.zeros.end(), most ? 0 : 16);
            ExpectProduct(Multiply(x, *PackAny({w.matrix}), nullptr), x.Values(), k, {},
                          w.Dequantized(), {});
          }
        }
        Weights fp4 = Weights::Fp4(random, n, k);
        std::fill(fp4.values.begin(), fp4.values.end(), static_cast<uint8_t>(most ? 0x77 : 0xff));
        ExpectProduct(Multiply(x, *PackAny({fp4.matrix}), nullptr), x.Values(), k, {},
                      fp4.Dequantized(), {});
        for (const int bits : {4, 5, 6}) {
          SuperBlocks w(random, bits, n, k, 256);
          std::fill(w.values.begin(), w.values.end(),
                    static_cast<int8_t>(most ? (1 << bits) - 1 : 0));
          std::fill(w.factors.begin(), w.factors.end(), static_cast<int8_t>(bits == 6 ? -128 : 63));
          ExpectProduct(Multiply(x, *PackAny({w.matrix}), nullptr), x.Values(), k, {},
                        w.Dequantized(), {});
        }
      }
    }
  }
}

// As of a file whose q, k and v are of three types.
TEST_P(QuantizedMatMulTest, AStackOfSeveralFormsIsTheProductsOfEach) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 12); ++seed) {
    Random random(seed);
    const int parts = random.Int(2, 4), rows = random.Int(1, 40), k = 512;
    Owned x(dtype_, rows, k, random.Floats(rows * k));
    std::vector<std::unique_ptr<AnyWeights>> weights;
    std::vector<AnyHostMatrix> stacked;
    std::vector<int> widths;
    int width = 0;
    const std::vector<float> floats = random.Floats(33 * k);
    for (int i = 0; i < parts; ++i) {
      widths.push_back(i == 1 ? 33 : random.Int(1, 100));
      width += widths.back();
      int cols = k;
      weights.push_back(std::make_unique<AnyWeights>(random, widths.back(), &cols));
      stacked.push_back(weights.back()->host);
      if (i == 1) stacked[1] = HostMatrix{floats.data(), DType::kF32, 33, k};
    }
    const std::vector<float> bias_values = random.Floats(width);
    auto bias = BufferOf(*backend_, bias_values);
    // The columns of `out` go on behind the matrix.
    Owned out(DType::kF32, rows, width, width + 5);
    auto packed = PackAny(stacked);
    EXPECT_EQ(packed->out_features(), width);
    backend_->MatMul(x, *packed, bias.get(), out);
    const std::vector<float> got = out.Values();
    int first = 0;
    int64_t size_bytes = 0;
    for (int i = 0; i < parts; first += widths[i++]) {
      auto alone = PackAny({stacked[i]});
      size_bytes += alone->size_bytes();
      auto its_bias = BufferOf(
          *backend_, {bias_values.begin() + first, bias_values.begin() + first + widths[i]});
      const std::vector<float> expected = Multiply(x, *alone, its_bias.get());
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < widths[i]; ++c) {
          ASSERT_EQ(got[r * width + first + c], expected[r * widths[i] + c]) << "part " << i;
        }
      }
    }
    EXPECT_LE(packed->size_bytes(), size_bytes);  // two of one form may share a panel
  }
}

TEST_P(QuantizedMatMulTest, EveryRowIsTheSameInEveryBatch) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 12); ++seed) {
    Random random(seed);
    const int n = random.Of({17, 64, 130, 320, 448}), most = 260;
    int k = random.Of({48, 96, 500, 896, 1600});
    const AnyWeights w(random, n, &k);
    Owned x(dtype_, most, k, random.Floats(most * k));
    auto bias = BufferOf(*backend_, random.Floats(n));
    auto packed = PackAny({w.host});
    std::vector<float> alone;
    for (int r = 0; r < most; ++r) {
      const std::vector<float> row = Multiply(x.Rows(r, 1), *packed, bias.get());
      alone.insert(alone.end(), row.begin(), row.end());
    }
    for (int trial = 0; trial < 12; ++trial) {
      const int rows = trial == 0 ? most : trial < 7 ? random.Int(2, 20) : random.Int(1, most);
      const int first = random.Int(0, most - rows);
      ExpectSame(Multiply(x.Rows(first, rows), *packed, bias.get()),
                 {alone.begin() + first * n, alone.begin() + (first + rows) * n},
                 "rows " + std::to_string(rows));
    }
  }
}

// Whole numbers are exact everywhere, and the rest is the same chain of fused operations.
TEST_P(QuantizedMatMulTest, InstructionSetAndThreadsDoNotShow) {
  // The portable kernels multiply and add apart: only threads may differ.
  const bool fused = GetParam().kernels != &kPortableKernels;
  auto other = Make({fused ? &kAvx2Kernels : &kPortableKernels, Compute::kF32, 1});
  for (uint32_t seed = 1; seed <= 24; ++seed) {
    Random random(seed);
    const int n = random.Int(1, 300), rows = random.Int(1, 90);
    int k = 2 * random.Int(1, 500);
    const AnyWeights w(random, n, &k);
    // bfloat16 values, which both activation types hold.
    const std::vector<float> values = Rounded(random.Floats(rows * k), DType::kBF16);
    Owned x(dtype_, rows, k, values), other_x(DType::kF32, rows, k, values);
    auto packed = PackAny({w.host});
    auto other_packed = std::move(other->PackAny({w.host})).value();
    Owned out(DType::kF32, rows, n);
    other->MatMul(other_x, *other_packed, nullptr, out);
    ExpectSame(Multiply(x, *packed, nullptr), out.Values(), "instruction set");
  }
}

TEST_P(QuantizedMatMulTest, ActivationsThatAreNotFiniteGiveNaN) {
  Random random(1);
  const int n = 40, k = 96;
  const Weights of_4(random, 4, n, k, 32, DType::kF16, false);
  const Weights of_8(random, 8, n, k, 32, DType::kF16, false);
  const SuperBlocks super_4(random, 4, n, k, 96), super_6(random, 6, n, k, 32);
  for (const AnyHostMatrix& w :
       std::vector<AnyHostMatrix>{of_4.matrix, of_8.matrix, super_4.matrix, super_6.matrix}) {
    auto packed = PackAny({w});
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      std::vector<float> values = random.Floats(3 * k);
      values[k + 50] = bad;
      const std::vector<float> got = Multiply(Owned(dtype_, 3, k, values), *packed, nullptr);
      for (int c = 0; c < n; ++c) {
        EXPECT_TRUE(std::isfinite(got[c]) && std::isfinite(got[2 * n + c]));
        EXPECT_TRUE(std::isnan(got[n + c])) << got[n + c];
      }
    }
    // Too small for a scale: 0, not a division by 0.
    const std::vector<float> tiny(static_cast<size_t>(k), 1e-38f), zeros(tiny.size(), 0.0f);
    ExpectSame(Multiply(Owned(dtype_, 1, k, tiny), *packed, nullptr),
               Multiply(Owned(dtype_, 1, k, zeros), *packed, nullptr), "tiny");
  }
}

// What panels cannot hold is dequantised: groups across blocks, 8 bits with other zeros, two
// orders.
TEST_P(QuantizedMatMulTest, OtherFormsAreDequantised) {
  Random random(1);
  const int n = 33, k = 96, rows = 5;
  const Weights odd_group(random, 4, n, k, 48, DType::kF16, false);
  const Weights other_zeros(random, 8, n, k, 32, DType::kF16, true);
  const Weights a(random, 4, n, k, 32, DType::kF16, false, Shuffled(random, k));
  const Weights b(random, 4, n, k, 32, DType::kF16, false, Shuffled(random, k));
  Owned x(dtype_, rows, k, random.Floats(rows * k));
  for (const std::vector<const Weights*>& stack :
       {std::vector<const Weights*>{&odd_group}, {&other_zeros}, {&a, &b}}) {
    std::vector<QuantizedHostMatrix> matrices;
    std::vector<float> floats;
    for (const Weights* w : stack) {
      matrices.push_back(w->matrix);
      const std::vector<float> each = w->Dequantized();
      floats.insert(floats.end(), each.begin(), each.end());
    }
    const int64_t all = n * static_cast<int64_t>(stack.size());
    auto packed = std::move(backend_->Pack({{floats.data(), DType::kF32, all, k}})).value();
    ExpectSame(Multiply(x, *Pack(matrices), nullptr), Multiply(x, *packed, nullptr), "float");
  }
}

INSTANTIATE_TEST_SUITE_P(AllVariants, QuantizedMatMulTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace baton::backend
