// Norms, RoPE, activation, embedding, copies.
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/common/backend/cpu/test_backend.h"
#include "tests/testing/kv_rows.h"

namespace baton::backend {
namespace {

class VectorOpsTest : public ::testing::TestWithParam<Variant> {
 protected:
  VectorOpsTest() : backend_(Make(GetParam())), dtype_(backend_->activation_dtype()) {}
  double Tolerance(DType dtype) const { return dtype == DType::kF32 ? 2e-6 : 8e-3; }

  std::unique_ptr<Backend> backend_;
  DType dtype_;
};

std::vector<double> NormedRow(const float* x, const std::vector<float>& weight, double eps) {
  double squares = 0;
  for (size_t i = 0; i < weight.size(); ++i) squares += double{x[i]} * x[i];
  std::vector<double> y(weight.size());
  for (size_t i = 0; i < y.size(); ++i) {
    y[i] = x[i] / std::sqrt(squares / static_cast<double>(y.size()) + eps) * weight[i];
  }
  return y;
}

TEST_P(VectorOpsTest, Norm) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    const int rows = random.Int(1, 40), cols = random.Of({1, 15, 16, 17, 96, 896, 1000});
    const std::vector<float> x = random.Floats(rows * cols), delta = random.Floats(rows * cols);
    const std::vector<float> w = random.Floats(cols);
    auto weight = BufferOf(*backend_, w);
    for (DType to : {DType::kF32, dtype_}) {
      Owned out(to, rows, cols), in(DType::kF32, rows, cols, x),
          more(DType::kF32, rows, cols, delta);
      backend_->Norm(
          {.residual = in, .delta = {}, .weight = weight.get(), .eps = 1e-6f, .out = out});
      ExpectSame(in.Values(), x, "input of Norm");
      const std::vector<float> plain = out.Values();
      backend_->Norm(
          {.residual = in, .delta = more, .weight = weight.get(), .eps = 1e-6f, .out = out});
      const std::vector<float> sum = in.Values(), added = out.Values();
      for (int r = 0; r < rows; ++r) {
        const std::vector<double> want = NormedRow(x.data() + r * cols, w, 1e-6);
        const std::vector<double> want_added = NormedRow(sum.data() + r * cols, w, 1e-6);
        for (int c = 0; c < cols; ++c) {
          const int i = r * cols + c;
          ASSERT_EQ(sum[i], x[i] + delta[i]);
          ASSERT_NEAR(plain[i], want[c], Tolerance(to) * std::max(1.0, std::abs(want[c])));
          ASSERT_NEAR(added[i], want_added[c],
                      Tolerance(to) * std::max(1.0, std::abs(want_added[c])));
        }
      }
    }
  }
}

// What is added may be scaled, and normed by itself; and there may be no norm of the sum.
TEST_P(VectorOpsTest, NormOfWhatIsAdded) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    const int rows = random.Int(1, 20), cols = random.Of({8, 17, 96, 896});
    const float scale = random.Of({1.0f, 0.25f});
    const bool norms_delta = random.Of({false, true}), norms_sum = random.Of({false, true});
    const std::vector<float> x = random.Floats(rows * cols), delta = random.Floats(rows * cols);
    const std::vector<float> w = random.Floats(cols), delta_w = random.Floats(cols);
    auto weight = BufferOf(*backend_, w), delta_weight = BufferOf(*backend_, delta_w);
    Owned out(dtype_, rows, cols), in(DType::kF32, rows, cols, x);
    Owned more(DType::kF32, rows, cols, delta);
    backend_->Norm({.residual = in,
                    .delta = more,
                    .delta_scale = scale,
                    .delta_weight = norms_delta ? delta_weight.get() : nullptr,
                    .weight = norms_sum ? weight.get() : nullptr,
                    .eps = 1e-6f,
                    .out = out});
    const std::vector<float> sum = in.Values(), got = out.Values();
    for (int r = 0; r < rows; ++r) {
      std::vector<float> scaled(delta.begin() + r * cols, delta.begin() + (r + 1) * cols);
      for (float& value : scaled) value *= scale;
      std::vector<double> added(scaled.begin(), scaled.end());
      if (norms_delta) added = NormedRow(scaled.data(), delta_w, 1e-6);
      std::vector<double> want(sum.begin() + r * cols, sum.begin() + (r + 1) * cols);
      if (norms_sum) want = NormedRow(sum.data() + r * cols, w, 1e-6);
      for (int c = 0; c < cols; ++c) {
        ASSERT_NEAR(sum[r * cols + c], x[r * cols + c] + added[c],
                    2e-6 * std::max(1.0, std::abs(added[c])));
        ASSERT_NEAR(got[r * cols + c], want[c],
                    Tolerance(dtype_) * std::max(1.0, std::abs(want[c])));
      }
    }
  }
}

// Queries and keys that are normed all heads together are columns of a wider tensor.
TEST_P(VectorOpsTest, NormInPlace) {
  Random random(3);
  const int rows = 9, cols = 48, width = 112;
  const std::vector<float> x = random.Floats(rows * width), w = random.Floats(cols);
  auto weight = BufferOf(*backend_, w);
  Owned all(DType::kF32, rows, width, x);
  Tensor part = all;
  part.cols = cols;
  part.data = static_cast<float*>(part.data) + 16;
  backend_->Norm(
      {.residual = part, .delta = {}, .weight = weight.get(), .eps = 1e-6f, .out = part});
  const std::vector<float> got = all.Values();
  for (int r = 0; r < rows; ++r) {
    const std::vector<double> want = NormedRow(x.data() + r * width + 16, w, 1e-6);
    for (int c = 0; c < width; ++c) {
      const int i = r * width + c;
      if (c < 16 || c >= 16 + cols) {
        ASSERT_EQ(got[i], x[i]);
      } else {
        ASSERT_NEAR(got[i], want[c - 16], 2e-6 * std::max(1.0, std::abs(want[c - 16])));
      }
    }
  }
}

TEST_P(VectorOpsTest, Gate) {
  Random random(1);
  const int rows = 30, f = 1003;
  std::vector<float> x = random.Floats(rows * 2 * f, 5);
  x[0] = -200, x[1] = 200, x[2] = 0, x[3] = -88.5f, x[4] = 88.5f, x[5] = -1e20f, x[6] = 1e20f;
  for (int i = 0; i < 8; ++i) x[f + i] = 1;
  Owned in(DType::kF32, rows, 2 * f, x);
  for (const GatedArgs& args : {GatedArgs{},
                                {.activation = GatedActivation::kClampedSwiglu},
                                {.activation = GatedActivation::kGeluTanh},
                                {.activation = GatedActivation::kGeluTanh, .scale = 0.125f}}) {
    for (DType to : {DType::kF32, dtype_}) {
      Owned out(to, rows, f);
      backend_->Gate(in, args, out);
      const std::vector<float> got = out.Values();
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < f; ++c) {
          double gate = x[r * 2 * f + c], up = x[r * 2 * f + f + c], u = gate / 2;
          if (args.activation == GatedActivation::kGeluTanh) {
            u = std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate);
          } else if (args.activation == GatedActivation::kClampedSwiglu) {
            gate = std::min(gate, 7.0);
            up = std::clamp(up, -7.0, 7.0) + 1;
            u = 1.702 * gate / 2;
          }
          const double want = gate / (1 + std::exp(-2 * u)) * up * args.scale;
          ASSERT_NEAR(got[r * f + c], want, Tolerance(to) * std::max(1e-3, std::abs(want)))
              << gate << " " << up;
        }
      }
    }
  }
}

TEST_P(VectorOpsTest, SquaredReluHasNoGate) {
  Random random(1);
  const int rows = 30, f = 1003;
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> x = random.Floats(rows * f, 5);
  x[0] = -200, x[1] = 200, x[2] = 0, x[3] = -0.0f, x[4] = -1e30f, x[5] = inf, x[6] = -inf;
  x[7] = std::nanf("");
  Owned in(DType::kF32, rows, f, x);
  for (const float scale : {1.0f, 0.125f}) {
    for (DType to : {DType::kF32, dtype_}) {
      Owned out(to, rows, f);
      backend_->Gate(in, {.activation = GatedActivation::kSquaredRelu, .scale = scale}, out);
      const std::vector<float> got = out.Values();
      EXPECT_TRUE(std::isnan(got[7])) << "the check of logits finds it";
      EXPECT_EQ(got[5], inf);
      for (int i = 0; i < rows * f; ++i) {
        if (i == 5 || i == 7) continue;
        const double positive = std::max(0.0, double{x[i]}), want = positive * positive * scale;
        ASSERT_NEAR(got[i], want, Tolerance(to) * want) << x[i];
      }
    }
  }
}

TEST_P(VectorOpsTest, ScaleLogits) {
  Random random(1);
  const int rows = 5, cols = 77;
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [scale, cap] : {std::pair(0.125f, 0.0f), {1.0f, 30.0f}, {2.0f, 0.5f}}) {
    std::vector<float> x = random.Floats(rows * cols, 40);
    x[0] = inf, x[1] = -inf, x[2] = std::nanf(""), x[3] = 1e-30f;
    Owned logits(DType::kF32, rows, cols, x);
    backend_->ScaleLogits(logits, scale, cap);
    const std::vector<float> got = logits.Values();
    EXPECT_TRUE(std::isnan(got[2])) << "the check of logits finds it";
    for (int i = 0; i < rows * cols; ++i) {
      if (i == 2) continue;
      const double scaled = double{x[i]} * scale;
      const double want = cap == 0 ? scaled : cap * std::tanh(scaled / cap);
      if (std::isinf(want)) {
        ASSERT_EQ(got[i], want);
      } else {
        ASSERT_NEAR(got[i], want, 4e-7 * std::max<double>(cap, std::abs(want)));
      }
    }
  }
}

TEST_P(VectorOpsTest, EmbedAndGather) {
  Random random(1);
  const int vocab = 50, d = 77;
  for (DType stored : {DType::kF32, DType::kBF16, DType::kF16}) {
    Owned table(stored, vocab, d, random.Floats(vocab * d));
    const std::vector<int32_t> tokens = {3, 49, 0, 3}, blocks = {0}, wanted = {1, 3};
    const SequenceRows rows = {0, 4, 0, blocks};
    auto batch = backend_->Upload({tokens, absl::MakeSpan(&rows, 1), wanted});
    Owned out(DType::kF32, 4, d), some(DType::kF32, 2, d);
    backend_->Embed(*batch, table, 1, out);
    backend_->GatherLogitRows(*batch, out, some);
    const std::vector<float> all = table.Values(), got = some.Values();
    ExpectSame({all.begin() + 49 * d, all.begin() + 50 * d}, {got.begin(), got.begin() + d}, "49");
    ExpectSame({all.begin() + 3 * d, all.begin() + 4 * d}, {got.begin() + d, got.end()}, "3");
    if (!backend_->embeds_packed(stored)) continue;
    auto packed = std::move(backend_->Pack({{table.tensor().data, stored, vocab, d}})).value();
    Owned from_packed(DType::kF32, 4, d);
    backend_->EmbedPacked(*batch, *packed, 1, from_packed);
    ExpectSame(from_packed.Values(), out.Values(), Name(stored));
    backend_->EmbedPacked(*batch, *packed, 2.5f, from_packed);
    const std::vector<float> plain = out.Values();
    backend_->Embed(*batch, table, 2.5f, out);
    ExpectSame(from_packed.Values(), out.Values(), Name(stored));
    for (size_t i = 0; i < plain.size(); ++i) ASSERT_EQ(out.Values()[i], plain[i] * 2.5f);
  }
}

// GateBy takes the other factor from a separate tensor, whose rows have another stride.
TEST_P(VectorOpsTest, GateByIsGate) {
  Random random(2);
  const int rows = 7, f = 43, stride = 100;
  const std::vector<float> gate = random.Floats(rows * f, 3), by = random.Floats(rows * stride);
  std::vector<float> both;
  for (int r = 0; r < rows; ++r) {
    both.insert(both.end(), gate.begin() + r * f, gate.begin() + (r + 1) * f);
    both.insert(both.end(), by.begin() + r * stride, by.begin() + r * stride + f);
  }
  Owned of_gate(DType::kF32, rows, f, gate), of_by(DType::kF32, rows, stride, by);
  Owned of_both(DType::kF32, rows, 2 * f, both);
  Owned out(dtype_, rows, f), want(dtype_, rows, f);
  Tensor columns = of_by;
  columns.cols = f;
  for (const GatedActivation activation : {GatedActivation::kSilu, GatedActivation::kGeluTanh}) {
    backend_->GateBy(of_gate, columns, activation, out);
    backend_->Gate(of_both, {.activation = activation}, want);
    ExpectSame(out.Values(), want.Values(), "gated");
  }
}

// Values that are the keys' product, values that are normed, and queries alone.
TEST_P(VectorOpsTest, RopeWriteKvOfMixedLayers) {
  Random random(3);
  const int q_heads = 4, kv_heads = 2, d = 48, tokens = 5;
  KvPool pool;
  pool.kv_heads = kv_heads;
  pool.head_dim = d;
  pool.block_tokens = 16;
  pool.block_count = 1;
  pool.dtype = DType::kF32;
  pool.layer_stride_bytes = pool.block_stride_bytes = 2 * kv_heads * pool.head_bytes();
  auto memory = std::move(backend_->Allocate(pool.block_stride_bytes)).value();
  pool.base = static_cast<std::byte*>(memory->data());
  auto rope = std::move(backend_->MakeRopeTable({.inverse_frequencies = {1, 0.3, 0}}, 64)).value();
  const std::vector<float> weight = random.Floats(d), ones(d, 1.0f);
  auto norm = BufferOf(*backend_, weight);
  const std::vector<int32_t> ids(tokens), blocks = {0};
  const SequenceRows rows = {0, tokens, 0, blocks};
  auto batch = backend_->Upload({ids, absl::MakeSpan(&rows, 1), {}});
  const std::vector<float> x = random.Floats(tokens * (q_heads + 2 * kv_heads) * d);
  for (const bool v_is_k : {false, true}) {
    const int width = (q_heads + (v_is_k ? 1 : 2) * kv_heads) * d;
    Owned qkv(DType::kF32, tokens, width, {x.begin(), x.begin() + tokens * width});
    Owned q_out(DType::kF32, tokens, q_heads * d), q_again(DType::kF32, tokens, q_heads * d);
    RopeWriteArgs args;
    args.query_heads = q_heads;
    args.qkv = qkv;
    args.q_norm = args.k_norm = norm.get();
    args.norm_eps = 1e-6f;
    args.rope = rope.get();
    args.q_out = q_out;
    args.v_is_k = v_is_k;
    args.norm_v = true;
    backend_->RopeWriteKv(*batch, pool, args);
    for (int t = 0; t < tokens; ++t) {
      for (int head = 0; head < kv_heads; ++head) {
        const int column = (q_heads + (v_is_k ? 0 : kv_heads) + head) * d;
        const std::vector<double> want = NormedRow(x.data() + t * width + column, ones, 1e-6);
        const KvRow k = ReadKvRow(pool, pool.base, 0, head, t);
        const KvRow v = ReadKvRow(pool, pool.base, 1, head, t);
        for (int i = 0; i < d; ++i) ASSERT_NEAR(v.values[i], want[i], 1e-5);
        if (!v_is_k) continue;
        // Elements whose pair does not turn differ by the weight alone.
        ASSERT_NEAR(k.values[2], want[2] * weight[2], 1e-5);
      }
    }
    // Queries alone have the same bits, and leave the pool as it is.
    std::vector<float> q_columns;
    for (int t = 0; t < tokens; ++t) {
      q_columns.insert(q_columns.end(), x.begin() + t * width, x.begin() + t * width + q_heads * d);
    }
    Owned q_in(DType::kF32, tokens, q_heads * d, q_columns);
    std::memset(pool.base, 0x11, memory->size_bytes());
    args.qkv = q_in;
    args.q_out = q_again;
    args.v_is_k = args.norm_v = false;
    args.q_only = true;
    backend_->RopeWriteKv(*batch, pool, args);
    ExpectSame(q_again.Values(), q_out.Values(), "q");
    for (size_t i = 0; i < memory->size_bytes(); ++i) {
      ASSERT_EQ(pool.base[i], std::byte{0x11}) << "byte " << i;
    }
  }
}

TEST_P(VectorOpsTest, RopeWriteKv) {
  for (uint32_t seed = 1; seed <= 10; ++seed) {
    Random random(seed);
    const int d = random.Of({32, 64, 80, 128, 256}), q_heads = 4, kv_heads = 2, tokens = 20;
    const int half = seed % 3 == 0 ? d / 4 : d / 2;  // some models turn a part of the head only
    const bool norm = seed % 2 == 0;
    KvPool pool;
    pool.kv_heads = kv_heads;
    pool.head_dim = d;
    pool.block_tokens = 16;
    pool.block_count = 8;
    pool.dtype = random.Of({DType::kF32, DType::kBF16, DType::kF16});
    pool.format = random.Of(
        {KvFormat::kPlain, KvFormat::kPlain, KvFormat::kInt8, KvFormat::kInt4, KvFormat::kFp8});
    pool.layer_stride_bytes = 2 * kv_heads * pool.head_bytes();
    pool.block_stride_bytes = 3 * pool.layer_stride_bytes;
    auto memory = std::move(backend_->Allocate(8 * pool.block_stride_bytes)).value();
    pool.base = static_cast<std::byte*>(memory->data());

    std::vector<double> frequencies(half);
    for (int i = 0; i < half; ++i) frequencies[i] = std::pow(10000.0, -1.0 * i / half);
    // Some layers turn nothing, and queries of some models grow with the position.
    const bool turns = seed % 5 != 0;
    const double beta = seed % 3 == 1 ? 0.5 : 0;
    auto rope = std::move(backend_->MakeRopeTable({.inverse_frequencies = frequencies,
                                                   .factor = 1.25f,
                                                   .query_beta = beta,
                                                   .query_positions = 8},
                                                  4096))
                    .value();
    const int width = (q_heads + 2 * kv_heads) * d;
    const std::vector<float> x = random.Floats(tokens * width);
    const std::vector<float> qw = random.Floats(d), kw = random.Floats(d);
    auto q_norm = BufferOf(*backend_, qw), k_norm = BufferOf(*backend_, kw);
    const std::vector<int32_t> ids(tokens), blocks = {5, 2, 7};
    const int context = 13;
    const SequenceRows rows = {0, tokens, context, blocks};
    auto batch = backend_->Upload({ids, absl::MakeSpan(&rows, 1), {}});
    Owned qkv(DType::kF32, tokens, width, x), q_out(DType::kF32, tokens, q_heads * d);
    RopeWriteArgs args;
    args.layer = 2;
    args.query_heads = q_heads;
    args.qkv = qkv;
    args.q_norm = norm ? q_norm.get() : nullptr;
    args.k_norm = norm ? k_norm.get() : nullptr;
    args.norm_eps = 1e-6f;
    args.rope = turns ? rope.get() : nullptr;
    args.q_out = q_out;
    backend_->RopeWriteKv(*batch, pool, args);

    const auto want = [&](int t, int head, const std::vector<float>* weight) {
      const float* from = x.data() + t * width + head * d;
      std::vector<double> y(from, from + d);
      if (weight != nullptr) y = NormedRow(from, *weight, 1e-6);
      std::vector<double> turned = y;
      for (int i = 0; i < (turns ? half : 0); ++i) {
        const double angle = (context + t) * frequencies[i];
        turned[i] = 1.25 * (y[i] * std::cos(angle) - y[i + half] * std::sin(angle));
        turned[i + half] = 1.25 * (y[i + half] * std::cos(angle) + y[i] * std::sin(angle));
      }
      return turned;
    };
    const auto slot = [&](int t, int k_or_v, int head) {
      const int position = context + t;
      const std::byte* chunk =
          pool.base + blocks[position / 16] * pool.block_stride_bytes + 2 * pool.layer_stride_bytes;
      return ReadKvRow(pool, chunk, k_or_v, head, position % 16);
    };
    const std::vector<float> q = q_out.Values();
    for (int t = 0; t < tokens; ++t) {
      for (int head = 0; head < q_heads; ++head) {
        const std::vector<double> w = want(t, head, norm ? &qw : nullptr);
        const double grown = turns ? 1 + beta * std::log1p((context + t) / 8) : 1;
        for (int i = 0; i < d; ++i) {
          ASSERT_NEAR(q[(t * q_heads + head) * d + i], w[i] * grown, 2e-5 * grown);
        }
      }
      for (int head = 0; head < kv_heads; ++head) {
        const std::vector<double> w = want(t, q_heads + head, norm ? &kw : nullptr);
        const KvRow k = slot(t, 0, head), v = slot(t, 1, head);
        const float* from = x.data() + t * width + (q_heads + kv_heads + head) * d;
        if (pool.format != KvFormat::kPlain) {
          for (int i = 0; i < d; ++i) {
            const auto at = static_cast<size_t>(i);
            ASSERT_NEAR(k.values[at], w[at], KvErrorBound(pool.format, k, w[at]) + 2e-5);
            ASSERT_NEAR(v.values[at], from[i], KvErrorBound(pool.format, v, from[i]));
          }
          continue;
        }
        const double tolerance = Tolerance(pool.dtype) * 10;
        for (int i = 0; i < d; ++i)
          ASSERT_NEAR(k.values[i], w[i], tolerance * std::max(1.0, std::abs(w[i])));
        ExpectSame(v.values, Rounded({from, from + d}, pool.dtype), "v");
      }
    }
  }
}

// V is written as it is: rows of equal, tiny, huge and infinite elements, zeros of both signs, NaN.
TEST_P(VectorOpsTest, QuantizedRowsOfOddValues) {
  constexpr int kDim = 40, kTokens = 10;  // no multiple of a vector
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const auto element = [&](int token, int i) -> float {
    switch (token) {
      case 0:
        return 0.3f;
      case 1:
        return i % 2 == 0 ? -0.0f : 0.0f;
      case 2:
        return 1e-30f * static_cast<float>(i);
      case 3:
        return i % 2 == 0 ? 3e38f : -1.0f;
      case 4:
        return i == 39 ? nan : 1.0f;
      case 5:
        return i == 0 ? inf : 1.0f;
      case 6:
        return i == 7 ? -inf : 1.0f;
      case 7:
        return -65504.0f + 3000.0f * static_cast<float>(i);
      case 8:
        return i == 3 ? 100.0f : 1e-4f * static_cast<float>(i);
      default:
        return static_cast<float>(i) - 20.0f;
    }
  };
  for (const KvFormat format : {KvFormat::kInt8, KvFormat::kInt4, KvFormat::kFp8}) {
    KvPool pool;
    pool.kv_heads = 1;
    pool.head_dim = kDim;
    pool.block_tokens = 16;
    pool.block_count = 1;
    pool.format = format;
    pool.layer_stride_bytes = pool.block_stride_bytes = 2 * pool.head_bytes();
    auto memory = std::move(backend_->Allocate(pool.block_stride_bytes)).value();
    pool.base = static_cast<std::byte*>(memory->data());
    auto rope = std::move(backend_->MakeRopeTable({.inverse_frequencies = {0.5}}, 16)).value();
    std::vector<float> x(kTokens * 3 * kDim);
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < kDim; ++i) x[(t * 3 + 2) * kDim + i] = element(t, i);
    }
    const std::vector<int32_t> ids(kTokens), blocks = {0};
    const SequenceRows rows = {0, kTokens, 0, blocks};
    auto batch = backend_->Upload({ids, absl::MakeSpan(&rows, 1), {}});
    Owned qkv(DType::kF32, kTokens, 3 * kDim, x), q_out(DType::kF32, kTokens, kDim);
    RopeWriteArgs args;
    args.query_heads = 1;
    args.qkv = qkv;
    args.rope = rope.get();
    args.q_out = q_out;
    backend_->RopeWriteKv(*batch, pool, args);
    for (int t = 0; t < kTokens; ++t) {
      SCOPED_TRACE(absl::StrCat("format ", static_cast<int>(format), ", token ", t));
      const KvRow row = ReadKvRow(pool, pool.base, 1, 0, t);
      for (int i = 0; i < kDim; ++i) {
        if (t >= 4 && t <= 6) {
          ASSERT_TRUE(std::isnan(row.values[i])) << "the row as a whole";
          continue;
        }
        const float want = std::clamp(element(t, i), -kLargestKvElement, kLargestKvElement);
        ASSERT_TRUE(std::isfinite(row.values[i]));
        ASSERT_NEAR(row.values[i], want, KvErrorBound(format, row, want));
      }
    }
  }
}

TEST_P(VectorOpsTest, CopyBlocksTakesAllLayers) {
  KvPool pool;
  pool.block_count = 4;
  pool.layer_stride_bytes = 64;
  pool.block_stride_bytes = 256;
  auto memory = std::move(backend_->Allocate(4 * 256)).value();
  auto* bytes = static_cast<unsigned char*>(memory->data());
  for (int i = 0; i < 4 * 256; ++i) bytes[i] = static_cast<unsigned char>(i / 256);
  pool.base = static_cast<std::byte*>(memory->data());
  backend_->CopyBlocks(pool, {3, 0}, {1, 2});
  const int want[] = {0, 3, 0, 3};
  for (int i = 0; i < 4 * 256; ++i) ASSERT_EQ(bytes[i], want[i / 256]) << i;
}

TEST_P(VectorOpsTest, ManyRowsAsOne) {
  Random random(1);
  const int rows = 100, cols = 896;
  Owned x(DType::kF32, rows, cols, random.Floats(rows * cols)), all(dtype_, rows, cols);
  auto weight = BufferOf(*backend_, random.Floats(cols));
  backend_->Norm({.residual = x, .delta = {}, .weight = weight.get(), .eps = 1e-5f, .out = all});
  for (int r = 0; r < rows; ++r) {
    Owned one(dtype_, 1, cols);
    backend_->Norm(
        {.residual = x.Rows(r, 1), .delta = {}, .weight = weight.get(), .eps = 1e-5f, .out = one});
    const std::vector<float> values = all.Values();
    ExpectSame(one.Values(), {values.begin() + r * cols, values.begin() + (r + 1) * cols}, "row");
  }
}

INSTANTIATE_TEST_SUITE_P(AllVariants, VectorOpsTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return NameOf(info.param); });

// The hardware's conversions are the reference for the portable ones.
TEST(ConversionTest, AllHalvesAndTheirNeighboursAgree) {
  std::vector<uint16_t> halves(65536);
  std::iota(halves.begin(), halves.end(), 0);
  for (Element element : {Element::kF16, Element::kBF16}) {
    std::vector<float> portable(65536), best(65536);
    kPortableKernels.to_f32(halves.data(), element, 65536, portable.data());
    KernelsOf(BestIsa()).to_f32(halves.data(), element, 65536, best.data());
    for (int i = 0; i < 65536; ++i) {
      if (std::isnan(best[i])) {
        ASSERT_TRUE(std::isnan(portable[i])) << i;
      } else {
        ASSERT_EQ(portable[i], best[i]) << i;
      }
    }
    std::vector<float> values;
    for (float value : best) {
      if (std::isnan(value)) continue;
      for (float factor : {1.0f, 1.0001f, 1.00048828125f, 0.9997f, 1.001953125f, 1.00390625f}) {
        values.push_back(value * factor);
      }
    }
    const int64_t count = static_cast<int64_t>(values.size());
    std::vector<uint16_t> a(values.size()), b(values.size());
    kPortableKernels.from_f32(values.data(), element, count, a.data());
    KernelsOf(BestIsa()).from_f32(values.data(), element, count, b.data());
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(a[i], b[i]) << values[i];
  }
}

TEST(MemoryTest, TooMuchIsRefusedWithItsSize) {
  auto backend = Make({&KernelsOf(BestIsa()), Compute::kF32, 1});
  const auto result = backend->Allocate(size_t{1} << 50);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(result.status().message()).find("1125899906842624"), std::string::npos)
      << result.status();
}

TEST(MemoryTest, IsZeroedAndAligned) {
  auto backend = Make({&KernelsOf(BestIsa()), Compute::kF32, 1});
  for (size_t size : {size_t{0}, size_t{1}, size_t{5000}, size_t{3} << 20}) {
    auto buffer = std::move(backend->Allocate(size)).value();
    EXPECT_EQ(buffer->size_bytes(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    for (size_t i = 0; i < size; ++i) ASSERT_EQ(static_cast<char*>(buffer->data())[i], 0);
  }
}

TEST(OptionsTest, BF16IsRefusedWhereItIsNotMultiplied) {
  BackendOptions options;
  options.compute = Compute::kBF16;
  EXPECT_EQ(MakeCpuBackend(options, kPortableKernels).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.compute = Compute::kAuto;
  EXPECT_EQ(Make({&kPortableKernels, Compute::kAuto, 1})->activation_dtype(), DType::kF32);
}

TEST(OptionsTest, F16IsRefused) {
  BackendOptions options;
  options.compute = Compute::kF16;
  const absl::Status status = MakeCpuBackend(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("float16"), std::string::npos) << status;
}

// What the engine reads from it: nothing to prepare, no arena, no copier, tokens drawn by the host.
TEST(DeviceTest, TheHostsMemoryNeedsNoArenaAndNoCopier) {
  auto backend = Make({&KernelsOf(BestIsa()), Compute::kF32, 1});
  EXPECT_TRUE(backend->Prepare(StepLimits()).ok());
  EXPECT_EQ(backend->FreeBytes(), std::nullopt);
  EXPECT_EQ(backend->MakeKvCopier(KvPool()), nullptr);
  EXPECT_FALSE(backend->samples_on_device());
}

}  // namespace
}  // namespace baton::backend
