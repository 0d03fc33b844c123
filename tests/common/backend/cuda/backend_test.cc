// backend.h on every device: memory, weights and what works row by row, against float64. Attention
// and KV: backend_kv_test.cc.
#include "common/backend/backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/error.h"
#include "tests/common/backend/cuda/device_test.h"

namespace baton::backend {
namespace {

class BackendTest : public DeviceTest {};
INSTANTIATE_TEST_SUITE_P(Devices, BackendTest, ::testing::ValuesIn(baton::testing::Devices()),
                         NameOfDevice);

// ---- Memory ------------------------------------------------------------------------------------

TEST_P(BackendTest, MemoryIsZeroUntilItIsWrittenAndZeroAgain) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 20; ++round) {
    // Beyond the staging's halves now and then.
    const auto size = static_cast<size_t>(round == 7 ? (17 << 20) + Int(0, 99) : Int(1, 70'000));
    const auto buffer = backend_->Allocate(size).value();
    ASSERT_EQ(buffer->size_bytes(), size);
    std::vector<char> expected(size), found(size, 'x');
    backend_->CopyToHost(found.data(), buffer->data(), size);
    ASSERT_EQ(found, expected) << "round " << round;
    for (char& byte : expected) byte = static_cast<char>(random_());
    backend_->CopyToDevice(buffer->data(), expected.data(), size);
    const auto at = static_cast<size_t>(Int(0, static_cast<int>(size) - 1));
    const auto count = static_cast<size_t>(Int(0, static_cast<int>(size - at)));
    std::vector<char> part(count, 'y');
    std::copy(part.begin(), part.end(), expected.begin() + static_cast<ptrdiff_t>(at));
    backend_->CopyToDevice(static_cast<char*>(buffer->data()) + at, part.data(), count);
    std::fill(part.begin(), part.end(), 'z');  // the caller's again
    backend_->CopyToHost(found.data(), buffer->data(), size);
    ASSERT_EQ(found, expected) << "round " << round;
  }
}

TEST_P(BackendTest, MemoryThatIsNotThereIsAnError) {
  const absl::Status status = backend_->Allocate(size_t{1} << 60).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_NE(status.message().find(std::to_string(size_t{1} << 60)), std::string::npos) << status;
  ASSERT_EQ(backend_->FreeBytes().has_value(), !on_cpu());
  if (on_cpu()) return;
  EXPECT_EQ(ErrorReason(status), "DEVICE_MEMORY");
  const size_t all = *backend_->FreeBytes();
  EXPECT_FALSE(backend_->Allocate(all + 1).ok());
  {
    const auto half = backend_->Allocate(all / 2).value();
    const size_t rest = *backend_->FreeBytes();
    EXPECT_LE(rest, all - all / 2);
    EXPECT_FALSE(backend_->Allocate(rest + 1).ok());
    const auto other = backend_->Allocate(rest).value();
    EXPECT_EQ(*backend_->FreeBytes(), 0u);
    EXPECT_FALSE(backend_->Allocate(1).ok());
    EXPECT_EQ(backend_->Pack({HostMatrix{&all, DType::kF32, 0, 8}}).status().code(),
              absl::StatusCode::kResourceExhausted);
  }
  EXPECT_EQ(*backend_->FreeBytes(), all);
}

TEST_P(BackendTest, PrepareTakesWhatItSaid) {
  StepLimits limits = Limits(64, 14, 2, 80, 32);
  if (Coin()) limits.other_heads = {{16, 1, 512}, {4, 4, 64}};
  const size_t said = backend_->WorkspaceBytes(limits);
  if (on_cpu()) {
    EXPECT_EQ(said, 0u);
    EXPECT_TRUE(backend_->Prepare(limits).ok());
    return;
  }
  const size_t before = *backend_->FreeBytes();
  ASSERT_TRUE(backend_->Prepare(limits).ok());
  const size_t taken = before - *backend_->FreeBytes();
  EXPECT_LE(taken, said);
  EXPECT_GT(taken + 4096, said);
}

TEST_P(BackendTest, PrepareRefusesWhatTheKernelsCannot) {
  const auto refused = [&](auto change) {
    StepLimits limits = Limits(16);
    change(limits);
    const absl::Status status = backend_->Prepare(limits);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_EQ(ErrorReason(status), "UNSUPPORTED_MODEL");
  };
  refused([](StepLimits& limits) {
    limits.query_heads = 1024;
    limits.kv_heads = 1;
    limits.max_rows = 1 << 15;
  });
  if (on_cpu()) return;
  refused([](StepLimits& limits) { limits.head_dim = 12; });
  refused([](StepLimits& limits) { limits.head_dim = 264; });
  refused([](StepLimits& limits) { limits.head_dim = 520; });
  refused([](StepLimits& limits) { limits.other_heads = {{2, 1, 264}}; });
  refused([](StepLimits& limits) { limits.other_heads = {{3, 2, 64}}; });
  refused([](StepLimits& limits) { limits.hidden_dim = 60; });
  refused([](StepLimits& limits) { limits.kv_heads = 3; });
  refused([](StepLimits& limits) { limits.block_tokens = 8; });
  refused([](StepLimits& limits) { limits.block_tokens = 48; });
  StepLimits limits = Limits(16);
  limits.max_rows = limits.max_logit_rows = 1 << 24;
  limits.max_positions = 1 << 17;
  limits.max_sequences = 1 << 15;
  if (!on_gpu()) {
    EXPECT_EQ(backend_->Prepare(limits).code(), absl::StatusCode::kResourceExhausted);
  }
}

// ---- Weights and products ----------------------------------------------------------------------

// x Wᵀ of unit rows is W: what the device has of it.
std::vector<float> UnitRows(int64_t size) {
  std::vector<float> values(static_cast<size_t>(size * size));
  for (int64_t i = 0; i < size; ++i) values[static_cast<size_t>(i * size + i)] = 1;
  return values;
}

TEST_P(BackendTest, PacksWeightsOfEveryTypeRoundedToTheNearest) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(9); ++round) {
    const int64_t cols = 8 * Int(1, 12);
    std::vector<HostMatrix> stacked;
    std::vector<std::vector<std::byte>> files;
    std::vector<float> expected;
    int64_t rows = 0;
    for (int i = Int(1, 3); i > 0; --i) {
      const DType dtype = Of({DType::kF32, DType::kBF16, DType::kF16});
      const int64_t count = Int(1, 50);
      const std::vector<std::byte> bytes = Converted(Floats(count * cols), dtype);
      // At any alignment.
      files.emplace_back(1);
      files.back().insert(files.back().end(), bytes.begin(), bytes.end());
      stacked.push_back({files.back().data() + 1, dtype, count, cols});
      const std::vector<float> values =
          Rounded(Widened(bytes.data(), count * cols, dtype), activation());
      expected.insert(expected.end(), values.begin(), values.end());
      rows += count;
    }
    const auto matrix = backend_->Pack(stacked).value();
    ASSERT_EQ(matrix->out_features(), rows);
    ASSERT_EQ(matrix->in_features(), cols);
    const DeviceTensor x = With(activation(), cols, cols, UnitRows(cols));
    const DeviceTensor out = Empty(DType::kF32, cols, rows);
    backend_->MatMul(x, *matrix, nullptr, out);
    const std::vector<float> found = out.Get();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        ASSERT_EQ(found[static_cast<size_t>(col * rows + row)],
                  expected[static_cast<size_t>(row * cols + col)])
            << "round " << round << ", row " << row << ", column " << col;
      }
    }
  }
}

// A weight beyond float16 is infinite there: what it touches fails loudly, and nothing else does.
TEST_P(BackendTest, WeightsBeyondFloat16Show) {
  const int64_t cols = 16, rows = 5;
  std::vector<float> values(static_cast<size_t>(rows * cols), 1.0f);
  values[0] = 65'504;
  values[static_cast<size_t>(1 * cols)] = -65'519;  // rounds to the greatest
  values[static_cast<size_t>(2 * cols)] = 65'520;   // does not
  values[static_cast<size_t>(3 * cols)] = -3e38f;
  const auto matrix = Packed(values, rows, cols);
  const std::vector<float> ones(static_cast<size_t>(cols), 1.0f);
  const DeviceTensor x = With(activation(), 1, cols, ones), out = Empty(DType::kF32, 1, rows);
  backend_->MatMul(x, *matrix, nullptr, out);
  const std::vector<float> found = out.Get();
  const bool f16 = activation() == DType::kF16;
  EXPECT_NEAR(found[0], 65'504 + 15, f16 ? 0 : 300);
  EXPECT_NEAR(found[1], -65'504 + 15, f16 ? 0 : 300);
  EXPECT_EQ(std::isinf(found[2]), f16) << found[2];
  EXPECT_EQ(std::isinf(found[3]), f16) << found[3];
  EXPECT_EQ(found[4], 16);
}

TEST_P(BackendTest, RefusesMatricesAndRotationsThatTheKernelsCannot) {
  const std::vector<float> values(120, 1.0f);
  const auto packed = backend_->Pack({HostMatrix{values.data(), DType::kF32, 10, 12}});
  const auto rope =
      backend_->MakeRopeTable({.inverse_frequencies = std::vector<double>(6, 0.5)}, 10);
  EXPECT_EQ(packed.ok(), on_cpu());
  EXPECT_EQ(rope.ok(), on_cpu());
  if (on_cpu()) return;
  EXPECT_EQ(ErrorReason(packed.status()), "UNSUPPORTED_MODEL");
  EXPECT_EQ(ErrorReason(rope.status()), "UNSUPPORTED_MODEL");
}

TEST_P(BackendTest, MatMulEqualsTheReferenceInEveryBatch) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(12); ++round) {
    // Around the tiles' sizes, and beyond.
    const int64_t rows = round == 0 ? 300 : Of({1, 2, 15, 17, 32, 33, 64, 65, Int(1, 130)});
    const int64_t k = 8 * (2 * Int(0, 12) + 1), n = 2 * Int(0, 90) + 1;
    SCOPED_TRACE(::testing::Message() << rows << " x " << k << " by " << n);
    const std::vector<float> x_values = Rounded(Floats(rows * k), activation());
    const std::vector<float> w_values = Rounded(Floats(n * k), activation());
    const std::vector<float> bias = Floats(n);
    const bool biased = Coin();
    const auto w = Packed(w_values, n, k);
    const auto bias_buffer = BufferOf(bias);
    const DeviceTensor x = With(activation(), rows, k, x_values);
    const DeviceTensor out = Empty(DType::kF32, rows, n);
    backend_->MatMul(x, *w, biased ? bias_buffer.get() : nullptr, out);
    const std::vector<float> found = out.Get();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < n; ++column) {
        double expected = biased ? static_cast<double>(bias[static_cast<size_t>(column)]) : 0;
        double magnitude = std::fabs(expected);
        for (int64_t i = 0; i < k; ++i) {
          const double product = static_cast<double>(x_values[static_cast<size_t>(row * k + i)]) *
                                 static_cast<double>(w_values[static_cast<size_t>(column * k + i)]);
          expected += product;
          magnitude += std::fabs(product);
        }
        ASSERT_NEAR(found[static_cast<size_t>(row * n + column)], expected, 4e-6 * magnitude)
            << "row " << row << ", column " << column;
      }
    }
    // The same bits in a batch of other rows.
    const int64_t first = Int(0, static_cast<int>(rows) - 1);
    const int64_t count = Int(1, static_cast<int>(rows - first));
    const DeviceTensor some = Empty(DType::kF32, count, n);
    backend_->MatMul(x.Rows(first, count), *w, biased ? bias_buffer.get() : nullptr, some);
    ASSERT_EQ(std::memcmp(some.Get().data(), found.data() + first * n,
                          static_cast<size_t>(count * n) * sizeof(float)),
              0)
        << "rows from " << first << ", " << count << " of them";
  }
}

// ---- Row by row --------------------------------------------------------------------------------

TEST_P(BackendTest, EmbedsTokensExactly) {
  SCOPED_TRACE(seed_);
  ASSERT_TRUE(backend_->Prepare(Limits(64)).ok());
  for (int round = 0; round < Rounds(9); ++round) {
    const int64_t cols = 8 * Int(1, 200), vocab = Int(1, 60);
    const DType dtype = AnyOutDType();
    const std::vector<float> values = Rounded(Floats(vocab * cols), dtype);
    const DeviceTensor table = With(dtype, vocab, cols, values);
    std::vector<int32_t> tokens(static_cast<size_t>(Int(1, 64)));
    for (int32_t& token : tokens) token = Int(0, static_cast<int>(vocab) - 1);
    const auto batch = UploadTokens(tokens);
    const DeviceTensor out = Empty(DType::kF32, static_cast<int64_t>(tokens.size()), cols);
    const float scale = round % 3 == 0 ? 28.5f : 1.0f;
    std::vector<float> expected = values;
    for (float& value : expected) value *= scale;
    backend_->Embed(*batch, table, scale, out);
    const std::vector<float> found = out.Get();
    for (size_t row = 0; row < tokens.size(); ++row) {
      ASSERT_EQ(std::memcmp(&found[row * static_cast<size_t>(cols)],
                            &expected[static_cast<size_t>(tokens[row] * cols)],
                            static_cast<size_t>(cols) * sizeof(float)),
                0)
          << "round " << round << ", row " << row;
    }
  }
}

TEST_P(BackendTest, GathersLogitRowsExactly) {
  SCOPED_TRACE(seed_);
  ASSERT_TRUE(backend_->Prepare(Limits(64)).ok());
  for (int round = 0; round < Rounds(9); ++round) {
    const int64_t cols = 8 * Int(1, 200);
    const std::vector<int32_t> tokens(static_cast<size_t>(Int(1, 64)));
    std::vector<int32_t> logit_rows;
    for (size_t row = 0; row < tokens.size(); ++row) {
      if (round == 0 || Coin()) logit_rows.push_back(static_cast<int32_t>(row));
    }
    const auto batch = UploadTokens(tokens, logit_rows);
    const std::vector<float> values = Floats(static_cast<int64_t>(tokens.size()) * cols);
    const DeviceTensor x = With(DType::kF32, static_cast<int64_t>(tokens.size()), cols, values);
    const DeviceTensor out = Empty(DType::kF32, static_cast<int64_t>(logit_rows.size()), cols);
    backend_->GatherLogitRows(*batch, x, out);
    const std::vector<float> found = out.Get();
    for (size_t i = 0; i < logit_rows.size(); ++i) {
      ASSERT_EQ(std::memcmp(&found[i * static_cast<size_t>(cols)],
                            &values[static_cast<size_t>(logit_rows[i] * cols)],
                            static_cast<size_t>(cols) * sizeof(float)),
                0)
          << "round " << round << ", logit row " << i;
    }
  }
}

// 1 / rms, in double.
double InverseRms(const double* x, int64_t count, float eps) {
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) squares += x[i] * x[i];
  return 1 / std::sqrt(squares / static_cast<double>(count) + static_cast<double>(eps));
}

TEST_P(BackendTest, NormsRowsAndAddsToTheResidual) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(36); ++round) {
    // Beyond what the threads of a block hold, now and then.
    const int64_t rows = Int(1, 20), cols = 8 * Int(1, round % 6 == 0 ? 1300 : 100);
    const bool add = Coin(), scale_delta = add && Coin(), norm_delta = add && Coin();
    const bool weighted = Int(0, 3) > 0, in_place = Int(0, 3) == 0;
    const std::vector<float> x_values = Floats(rows * cols), delta_values = Floats(rows * cols);
    const std::vector<float> weight = Floats(cols), delta_weight = Floats(cols);
    const auto weight_buffer = BufferOf(weight), delta_weight_buffer = BufferOf(delta_weight);
    const DeviceTensor x = With(DType::kF32, rows, cols, x_values);
    const DeviceTensor delta = With(DType::kF32, rows, cols, delta_values);
    const DeviceTensor apart = Empty(AnyOutDType(), rows, cols);
    const DeviceTensor& out = in_place ? x : apart;
    NormArgs args = {.residual = x, .delta = {}, .eps = 1e-5f, .out = out};
    if (add) args.delta = delta;
    if (scale_delta) args.delta_scale = 0.25f;
    if (norm_delta) args.delta_weight = delta_weight_buffer.get();
    if (weighted) args.weight = weight_buffer.get();
    backend_->Norm(args);
    const std::vector<float> residual = x.Get(), found = out.Get();
    const double precision = Precision(out.tensor().dtype) + 1e-5;
    for (int64_t row = 0; row < rows; ++row) {
      std::vector<double> sums, deltas;
      for (int64_t col = 0; col < cols; ++col) {
        deltas.push_back(
            !add ? 0
                 : static_cast<double>(delta_values[static_cast<size_t>(row * cols + col)]) *
                       static_cast<double>(args.delta_scale));
      }
      const double delta_scale = norm_delta ? InverseRms(deltas.data(), cols, args.eps) : 1;
      for (int64_t col = 0; col < cols; ++col) {
        const auto at = static_cast<size_t>(row * cols + col);
        const double by =
            norm_delta ? delta_scale * static_cast<double>(delta_weight[static_cast<size_t>(col)])
                       : 1;
        sums.push_back(static_cast<double>(x_values[at]) + deltas[static_cast<size_t>(col)] * by);
        if (in_place) continue;
        if (norm_delta) {
          ASSERT_NEAR(residual[at], sums.back(), 1e-5 * (1 + std::fabs(sums.back())));
        } else {
          ASSERT_EQ(residual[at], static_cast<float>(sums.back()));
        }
      }
      const double scale = weighted ? InverseRms(sums.data(), cols, args.eps) : 1;
      for (int64_t col = 0; col < cols; ++col) {
        const auto at = static_cast<size_t>(row * cols + col);
        const double by =
            weighted ? scale * static_cast<double>(weight[static_cast<size_t>(col)]) : 1;
        const double expected = sums[static_cast<size_t>(col)] * by;
        ASSERT_NEAR(found[at], expected,
                    std::fabs(expected) * precision + 1e-5 * std::fabs(by) + 1e-7)
            << "round " << round << ": " << rows << " x " << cols << ", row " << row << ", column "
            << col << ", in place " << in_place;
      }
    }
  }
}

// Norms of q and of k over all heads, in the product's rows.
TEST_P(BackendTest, SlicesOfRowsAreNormedInPlace) {
  SCOPED_TRACE(seed_);
  const int64_t rows = 5, cols = 120, first = 40, count = 64;
  const std::vector<float> values = Floats(rows * cols), weight = Floats(count);
  const auto weight_buffer = BufferOf(weight);
  const DeviceTensor all = With(DType::kF32, rows, cols, values);
  Tensor slice = all;
  slice.data = static_cast<float*>(slice.data) + first;
  slice.cols = count;
  backend_->Norm(
      {.residual = slice, .delta = {}, .weight = weight_buffer.get(), .eps = 1e-5f, .out = slice});
  const std::vector<float> found = all.Get();
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = values.begin() + row * cols + first;
    const std::vector<double> x(begin, begin + count);
    const double scale = InverseRms(x.data(), count, 1e-5f);
    for (int64_t col = 0; col < cols; ++col) {
      const auto at = static_cast<size_t>(row * cols + col);
      const int64_t i = col - first;
      if (i < 0 || i >= count) {
        ASSERT_EQ(found[at], values[at]) << "beside the slice";
      } else {
        const double expected =
            x[static_cast<size_t>(i)] * scale * static_cast<double>(weight[static_cast<size_t>(i)]);
        ASSERT_NEAR(found[at], expected, 1e-5 * std::fabs(expected) + 1e-9);
      }
    }
  }
}

TEST_P(BackendTest, GatesUpByBothActivations) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(18); ++round) {
    const int64_t rows = Int(1, 20), cols = 8 * Int(1, 180);
    const bool gelu = round % 2 == 1;
    const GatedArgs args = {gelu ? GatedActivation::kGeluTanh : GatedActivation::kSilu,
                            Of({1.0f, 0.25f})};
    std::vector<float> values = Floats(rows * 2 * cols, 3);
    values[0] = 100;  // the exponential vanishes
    values[1] = -100;
    values[2] = -80;
    values[3] = 1e3f;    // its product with `up` is within float16
    values[4] = -1e30f;  // its cube is infinite
    const DeviceTensor gate_up = With(DType::kF32, rows, 2 * cols, values);
    const DeviceTensor out = Empty(activation(), rows, cols);
    backend_->Gate(gate_up, args, out);
    const std::vector<float> found = out.Get();
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t col = 0; col < cols; ++col) {
        const double gate = static_cast<double>(values[static_cast<size_t>(row * 2 * cols + col)]);
        const double up =
            static_cast<double>(values[static_cast<size_t>((row * 2 + 1) * cols + col)]);
        const double exponent =
            gelu ? -2 * std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate) : -gate;
        const double expected =
            gate / (1 + std::exp(exponent)) * up * static_cast<double>(args.scale);
        ASSERT_NEAR(found[static_cast<size_t>(row * cols + col)], expected,
                    std::fabs(expected) * (Precision(activation()) + 2e-5) + 1e-6)
            << "round " << round << ", row " << row << ", column " << col;
      }
    }
  }
}

TEST_P(BackendTest, ScalesAndCapsLogits) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(18); ++round) {
    const int64_t rows = Int(1, 5), cols = Int(1, 2000);
    const double scale = round % 3 == 0 ? 1 : 0.125, cap = round % 2 == 0 ? 0 : 30;
    const std::vector<float> values = Floats(rows * cols, 40);
    const DeviceTensor logits = With(DType::kF32, rows, cols, values);
    backend_->ScaleLogits(logits, static_cast<float>(scale), static_cast<float>(cap));
    const std::vector<float> found = logits.Get();
    for (size_t i = 0; i < found.size(); ++i) {
      const double x = static_cast<double>(values[i]) * scale;
      if (cap == 0) {
        ASSERT_EQ(found[i], static_cast<float>(x));
      } else {
        ASSERT_NEAR(found[i], cap * std::tanh(x / cap), cap * 3e-7) << x;
      }
    }
  }
}

// On both sides of the numbers of rows that are done in one pass.
TEST_P(BackendTest, GateOfAProductIsThatOfTheTwo) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(9); ++round) {
    const int64_t k = 8 * Int(1, 40), cols = 8 * Int(1, 30), rows = Int(1, round % 3 ? 40 : 140);
    const std::vector<float> gate = Floats(cols * k), up = Floats(cols * k);
    const GatedArgs args = {
        Of({GatedActivation::kSilu, GatedActivation::kGeluTanh, GatedActivation::kSquaredRelu}),
        Of({1.0f, 0.5f})};
    const bool has_gate = GatedParts(args.activation) == 2;
    std::vector<HostMatrix> parts = {{up.data(), DType::kF32, cols, k}};
    if (has_gate) parts.insert(parts.begin(), {gate.data(), DType::kF32, cols, k});
    const auto matrix = backend_->Pack(parts).value();
    const DeviceTensor x = With(activation(), rows, k, Floats(rows * k));
    const DeviceTensor gate_up = Empty(DType::kF32, rows, matrix->out_features());
    const DeviceTensor two = Empty(activation(), rows, cols), one = Empty(activation(), rows, cols);
    backend_->MatMul(x, *matrix, nullptr, gate_up);
    backend_->Gate(gate_up, args, two);
    const Tensor scratch = backend_->needs_gate_up() || !has_gate ? Tensor(gate_up) : Tensor();
    backend_->MatMulGated(x, *matrix, args, scratch, one);
    ASSERT_EQ(one.Get(), two.Get())
        << "round " << round << ": " << rows << " x " << k << " by " << cols;
  }
}

// What a number that broke touches is broken: nothing passes over it.
TEST_P(BackendTest, NonFiniteNumbersAreKept) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::nanf("")}) {
    std::vector<float> values(3 * 16, 1.0f);
    values[16 + 5] = bad;
    const DeviceTensor x = With(DType::kF32, 3, 16, values), out = Empty(activation(), 3, 16);
    const auto weight = BufferOf(std::vector<float>(16, 1.0f));
    backend_->Norm({.residual = x, .delta = {}, .weight = weight.get(), .eps = 1e-5f, .out = out});
    const std::vector<float> normed = out.Get();
    EXPECT_TRUE(std::isnan(normed[16 + 5])) << bad;
    EXPECT_TRUE(std::isfinite(normed[5]) && std::isfinite(normed[32 + 5]));
    const auto matrix = Packed(std::vector<float>(8 * 16, 0.5f), 8, 16);
    const DeviceTensor rounded = With(activation(), 3, 16, values);
    const DeviceTensor product = Empty(DType::kF32, 3, 8);
    backend_->MatMul(rounded, *matrix, nullptr, product);
    const std::vector<float> found = product.Get();
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(std::isfinite(found[i]), i / 8 != 1) << bad << ", element " << i;
    }
  }
}

// ---- Broken promises ---------------------------------------------------------------------------

class BackendDeathTest : public DeviceTest {
 protected:
  void SetUp() override {
    if (on_gpu()) GTEST_SKIP() << "a process that has a GPU does not fork";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    MakeBackend();
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, BackendDeathTest, ::testing::ValuesIn(baton::testing::Devices()),
                         NameOfDevice);

TEST_P(BackendDeathTest, TokensAreOfTheTable) {
  ASSERT_TRUE(backend_->Prepare(Limits(16)).ok());
  const DeviceTensor table = With(DType::kF32, 10, 8, Floats(80)), out = Empty(DType::kF32, 1, 8);
  for (const int32_t token : {-1, 10}) {
    EXPECT_DEATH(backend_->Embed(*UploadTokens({token}), table, 1, out), "token");
  }
}

TEST_P(BackendDeathTest, ShapesAgree) {
  const auto matrix = Packed(Floats(80), 10, 8);
  const DeviceTensor x = With(activation(), 2, 8, Floats(16)), out = Empty(DType::kF32, 2, 16);
  EXPECT_DEATH(backend_->MatMul(x, *matrix, nullptr, out), "CHECK failed");
  const DeviceTensor narrow = Empty(activation(), 2, 16);
  EXPECT_DEATH(backend_->MatMul(narrow, *matrix, nullptr, Empty(DType::kF32, 2, 10)),
               "CHECK failed");
  const auto weight = BufferOf(Floats(8));
  const DeviceTensor other = Empty(DType::kF32, 2, 16);
  EXPECT_DEATH(backend_->Norm({.residual = out, .delta = {}, .weight = weight.get(), .out = other}),
               "CHECK failed");
  EXPECT_DEATH(backend_->Norm({.residual = out, .delta = x, .out = other}), "CHECK failed");
  EXPECT_DEATH(backend_->Gate(out, {}, Empty(activation(), 2, 16)), "CHECK failed");
}

TEST_P(BackendDeathTest, PrepareComesFirstAndOnce) {
  if (on_cpu()) GTEST_SKIP() << "the CPU prepares nothing";
  EXPECT_DEATH(UploadTokens({1}), "Prepare comes first");
  ASSERT_TRUE(backend_->Prepare(Limits(16)).ok());
  EXPECT_DEATH((void)backend_->Prepare(Limits(16)), "Prepare comes once");
}

}  // namespace
}  // namespace baton::backend
