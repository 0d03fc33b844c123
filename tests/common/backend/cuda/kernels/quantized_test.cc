// Weights of 4 and 8 bits, run lane by lane: packed here as quantized.h says, not by the backend.
#include "common/backend/cuda/kernels/quantized.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <vector>

#include "common/backend/cuda/kernels/elementwise.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/norm.h"
#include "common/backend/cuda/kernels/quantized_normed.h"
#include "tests/common/backend/cuda/kernels/quantized_weights.h"

namespace baton::backend::cuda {
namespace {

// Every place once, and each mask takes the two elements of one register.
TEST(CudaQuantizedMapTest, PlacesAreAPermutationInPairs) {
  for (const int bits : {4, 8}) {
    for (int word = 0; word < bits / 4; ++word) {
      std::set<int> places;
      for (int i = 0; i < 32 / bits; ++i) {
        const int place = PlaceOfElement(word * 4 + i, bits);
        EXPECT_TRUE(place >= 0 && place < 32 / bits) << place;
        places.insert(place);
        if (i % 2 == 1) {
          EXPECT_EQ(place - PlaceOfElement(word * 4 + i - 1, bits), 16 / bits);
        }
      }
      EXPECT_EQ(places.size(), static_cast<size_t>(32 / bits));
      for (int i = 0; i < 32 / bits; ++i) {
        const uint32_t one = (1u << bits) - 2;  // not symmetric
        EXPECT_EQ(PlaceElements(one << i * bits, bits),
                  one << PlaceOfElement(word * 4 + i, bits) * bits);
      }
    }
  }
}

class CudaQuantizedTest : public QuantizedKernelTest {};

TEST_F(CudaQuantizedTest, BothKernelsMakeTheNearest16BitValues) {
  for (int round = 0; round < 32; ++round) {
    // Every kernel has its turn: bits, element and tiles of 8 rows of a block.
    const int bits = round % 2 == 0 ? 4 : 8, tiles = 1 << round / 4 % 4;
    const DType dtype = MultipliesBFloat16() && round % 4 < 2 ? DType::kBF16 : DType::kF16;
    // Some k are long enough for a slice of it to be several fetches.
    const bool long_k = Int(0, 3) == 0;
    const int n = Int(1, long_k ? 20 : 70);
    const int rows = Int(1 + tiles / 2 * 8, tiles < 8 || long_k ? tiles * 8 : 100);
    const int k = 8 * (long_k ? Int(200, 700) : Int(1, 50));
    const int group_sizes[] = {32, 32, 64, 128, 256, k};
    const int group_size = group_sizes[Int(0, 5)];
    const bool bf16_scales = dtype == DType::kBF16 && Coin();
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << bits << " bits, " << rows << " x " << k << " by "
                 << n << ", groups of " << group_size << ", " << Name(dtype));
    emulated::SetOptions(
        {.compute_capability = dtype == DType::kF16 && Coin() ? 75 : 80, .seed = random_()});
    const Weights w = RandomWeights(bits, n, k, group_size, bf16_scales, Coin());

    // From a row tile in the middle.
    const int first = 8 * Int(0, (n - 1) / 8);
    DeviceArray<uint16_t> some(static_cast<size_t>((n - first) * k));
    LaunchDequantize({.w = w.view, .first_row = first, .row_count = n - first, .out = some.data()},
                     bits, dtype, nullptr);
    DeviceArray<uint16_t> all(static_cast<size_t>(n * k));
    LaunchDequantize({.w = w.view, .first_row = 0, .row_count = n, .out = all.data()}, bits, dtype,
                     nullptr);
    ASSERT_TRUE(some.MarginsIntact() && all.MarginsIntact());
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(all[i], Round16(w.exact[i], dtype)) << "weight " << i << ": " << w.exact[i];
    }
    for (size_t i = 0; i < some.size(); ++i) {
      ASSERT_EQ(some[i], all[i + static_cast<size_t>(first * k)]);
    }

    const int64_t x_stride = k + 8 * Int(0, 2), out_stride = n + Int(0, 3);
    DeviceArray<uint16_t> x(static_cast<size_t>(rows * x_stride));
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < k; ++i)
        x[static_cast<size_t>(r * x_stride + i)] = Round16(Normal(), dtype);
    }
    DeviceArray<float> bias(static_cast<size_t>(n));
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = Normal();
    DeviceArray<float> fused(static_cast<size_t>(rows * out_stride)), plain(fused.size());
    LaunchQuantizedMatMul({.x = x.data(),
                           .x_stride = x_stride,
                           .w = w.view,
                           .bias = round % 3 == 0 ? nullptr : bias.data(),
                           .out = fused.data(),
                           .out_stride = out_stride,
                           .rows = rows},
                          bits, dtype, nullptr, QuantizedShape::kRows);
    LaunchMatMul({.x = x.data(),
                  .x_stride = x_stride,
                  .w = all.data(),
                  .bias = round % 3 == 0 ? nullptr : bias.data(),
                  .out = plain.data(),
                  .out_stride = out_stride,
                  .rows = rows,
                  .n = n,
                  .k = k},
                 dtype, nullptr);
    ASSERT_TRUE(fused.MarginsIntact());
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < out_stride; ++c) {
        const auto at = static_cast<size_t>(r * out_stride + c);
        if (c >= n) {
          ASSERT_TRUE(std::isnan(fused[at])) << "written beyond n";
          continue;
        }
        double sum = round % 3 == 0 ? 0 : double{bias[static_cast<size_t>(c)]}, size = 1;
        for (int i = 0; i < k; ++i) {
          const uint16_t& weight = all[static_cast<size_t>(c * k + i)];
          const double product = double{ToF32(&x[static_cast<size_t>(r * x_stride + i)], dtype)} *
                                 double{ToF32(&weight, dtype)};
          sum += product;
          size += std::fabs(product);
        }
        ASSERT_NEAR(fused[at], sum, 2e-6 * size) << "row " << r << ", column " << c;
        ASSERT_EQ(std::memcmp(&fused[at], &plain[at], sizeof(float)), 0);
      }
    }
  }
}

TEST_F(CudaQuantizedTest, GateInTheProductHasTheBitsOfTheTwo) {
  for (int round = 0; round < 32; ++round) {
    const int bits = round % 2 == 0 ? 4 : 8;
    const DType dtype = MultipliesBFloat16() && round % 4 < 2 ? DType::kBF16 : DType::kF16;
    const bool long_k = Int(0, 3) == 0;
    const int cols = 8 * Int(1, long_k ? 2 : 6);
    const int tiles = 1 << round / 4 % 4, rows = Int(1 + tiles / 2 * 8, tiles * 8);
    const int k = 8 * (long_k ? Int(200, 700) : Int(1, 50));
    const int group_sizes[] = {32, 32, 64, 128, 256, k};
    const int group_size = group_sizes[Int(0, 5)];
    const bool bf16_scales = dtype == DType::kBF16 && Coin();
    const Gating gating = {.kind = static_cast<GateKind>(Int(0, 2)),
                           .scale = Coin() ? 1.0f : 0.25f};
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << bits << " bits, gate "
                 << static_cast<int>(gating.kind) << ", " << rows << " x " << k << " by 2 x "
                 << cols << ", groups of " << group_size << ", " << Name(dtype));
    emulated::SetOptions(
        {.compute_capability = dtype == DType::kF16 && Coin() ? 75 : 80, .seed = random_()});
    const Weights w = RandomWeights(bits, 2 * cols, k, group_size, bf16_scales, Coin());
    const int64_t out_stride = cols + 8 * Int(0, 2);
    DeviceArray<uint16_t> x(static_cast<size_t>(rows * k));
    for (size_t i = 0; i < x.size(); ++i) x[i] = Round16(Normal(), dtype);
    DeviceArray<float> gate_up(static_cast<size_t>(rows * 2 * cols));
    LaunchQuantizedMatMul({.x = x.data(),
                           .x_stride = k,
                           .w = w.view,
                           .bias = nullptr,
                           .out = gate_up.data(),
                           .out_stride = 2 * cols,
                           .rows = rows},
                          bits, dtype, nullptr, QuantizedShape::kRows);
    DeviceArray<uint16_t> fused(static_cast<size_t>(rows * out_stride)), plain(fused.size());
    LaunchGate({.gate_up = gate_up.data(),
                .gate_up_stride = 2 * cols,
                .out = plain.data(),
                .out_stride = out_stride,
                .cols = cols,
                .gating = gating},
               dtype, rows, nullptr);
    LaunchQuantizedMatMulGated({.x = x.data(),
                                .x_stride = k,
                                .w = w.view,
                                .out = fused.data(),
                                .out_stride = out_stride,
                                .rows = rows,
                                .gating = gating},
                               bits, dtype, nullptr, QuantizedShape::kRows);
    ASSERT_TRUE(fused.MarginsIntact());
    ASSERT_EQ(fused.values(), plain.values());
  }
}

// What a test of the shapes kTile and kSlices draws. Every kernel has its turn: bits, element, rows
// of a block, slices of a block.
struct TileDraw {
  int bits;
  DType dtype;
  QuantizedShape shape;
  int tile_rows, rows, k, group_size;
  bool bf16_scales;
};

class CudaQuantizedTileTest : public QuantizedKernelTest {
 protected:
  TileDraw Draw(int round) {
    TileDraw draw = {};
    draw.bits = round % 2 == 0 ? 4 : 8;
    draw.dtype = MultipliesBFloat16() && round % 4 < 2 ? DType::kBF16 : DType::kF16;
    draw.tile_rows = round % 8 < 4 ? kSmallTileRows : kLargeTileRows;
    draw.shape = round >= 32      ? QuantizedShape::kAuto
                 : round % 16 < 8 ? QuantizedShape::kTile
                                  : QuantizedShape::kSlices;
    const bool large = draw.tile_rows == kLargeTileRows;
    draw.rows = large ? Int(kSmallTileRows + 1, 80) : Int(1, 40);
    // Some k are of several tiles a slice.
    draw.k = 8 * (Int(0, 3) == 0 ? Int(200, 500) : Int(1, 50));
    const int group_sizes[] = {32, 32, 64, 128, 256, draw.k};
    draw.group_size = group_sizes[Int(0, 5)];
    draw.bf16_scales = draw.dtype == DType::kBF16 && Coin();
    // Blocks of many rows have more shared memory than a T4.
    emulated::SetOptions(
        {.compute_capability = draw.dtype == DType::kF16 && !large && Coin() ? 75 : 80,
         .seed = random_()});
    return draw;
  }
  static ::testing::Message Say(int round, const TileDraw& draw) {
    return ::testing::Message() << "round " << round << ": " << draw.bits << " bits, " << draw.rows
                                << " rows, " << draw.tile_rows << " a block, k " << draw.k
                                << ", groups of " << draw.group_size << ", " << Name(draw.dtype);
  }
  DeviceArray<uint16_t> RandomX(int rows, int64_t stride, int k, DType dtype) {
    DeviceArray<uint16_t> x(static_cast<size_t>(rows * stride));
    for (int r = 0; r < rows; ++r) {
      for (int i = 0; i < k; ++i) x[static_cast<size_t>(r * stride + i)] = Round16(Normal(), dtype);
    }
    return x;
  }
};

TEST_F(CudaQuantizedTileTest, HasTheBitsOfTheProductWithThe16BitValues) {
  for (int round = 0; round < Rounds(40, 32); ++round) {
    const TileDraw draw = Draw(round);
    const auto& [bits, dtype, shape, tile_rows, rows, k, group_size, bf16_scales] = draw;
    const int n = Int(0, 3) == 0 ? Int(250, 540) : Int(1, 100);
    SCOPED_TRACE(Say(round, draw) << ", n " << n);
    const Weights w = RandomWeights(bits, n, k, group_size, bf16_scales, Coin());
    DeviceArray<uint16_t> dequantized(static_cast<size_t>(n * k));
    LaunchDequantize({.w = w.view, .first_row = 0, .row_count = n, .out = dequantized.data()}, bits,
                     dtype, nullptr);
    const int64_t x_stride = k + 8 * Int(0, 2), out_stride = n + Int(0, 3);
    const DeviceArray<uint16_t> x = RandomX(rows, x_stride, k, dtype);
    DeviceArray<float> bias(static_cast<size_t>(n));
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = Normal();
    const float* const added = Coin() ? bias.data() : nullptr;
    DeviceArray<float> fused(static_cast<size_t>(rows * out_stride)), plain(fused.size());
    DeviceArray<float> slice_sums(static_cast<size_t>(SliceSumsFloats(rows, n, k)));
    LaunchQuantizedMatMul({.x = x.data(),
                           .x_stride = x_stride,
                           .w = w.view,
                           .bias = added,
                           .out = fused.data(),
                           .out_stride = out_stride,
                           .rows = rows,
                           .tile_rows = tile_rows,
                           .slice_sums = slice_sums.data(),
                           .slice_sums_floats = static_cast<int64_t>(slice_sums.size())},
                          bits, dtype, nullptr, shape);
    LaunchMatMul({.x = x.data(),
                  .x_stride = x_stride,
                  .w = dequantized.data(),
                  .bias = added,
                  .out = plain.data(),
                  .out_stride = out_stride,
                  .rows = rows,
                  .n = n,
                  .k = k},
                 dtype, nullptr);
    ASSERT_TRUE(fused.MarginsIntact() && slice_sums.MarginsIntact());
    for (size_t i = 0; i < fused.size(); ++i) {
      const bool written = static_cast<int64_t>(i) % out_stride < n;
      ASSERT_EQ(std::isnan(fused[i]), !written) << "element " << i;
      if (!written) continue;
      ASSERT_EQ(std::memcmp(&fused[i], &plain[i], sizeof(float)), 0) << "element " << i;
    }
  }
}

TEST_F(CudaQuantizedTileTest, GateInTheProductHasTheBitsOfTheTwo) {
  for (int round = 0; round < Rounds(40, 32); ++round) {
    const TileDraw draw = Draw(round);
    const auto& [bits, dtype, shape, tile_rows, rows, k, group_size, bf16_scales] = draw;
    const int cols = 8 * (Int(0, 3) == 0 ? Int(16, 36) : Int(1, 8));
    const Gating gating = {.kind = static_cast<GateKind>(Int(0, 2)),
                           .scale = Coin() ? 1.0f : 0.25f};
    SCOPED_TRACE(Say(round, draw) << ", 2 x " << cols << ", gate "
                                  << static_cast<int>(gating.kind));
    const Weights w = RandomWeights(bits, 2 * cols, k, group_size, bf16_scales, Coin());
    const int64_t x_stride = k + 8 * Int(0, 2), out_stride = cols + 8 * Int(0, 2);
    const DeviceArray<uint16_t> x = RandomX(rows, x_stride, k, dtype);
    DeviceArray<float> gate_up(static_cast<size_t>(rows * 2 * cols));
    LaunchQuantizedMatMul({.x = x.data(),
                           .x_stride = x_stride,
                           .w = w.view,
                           .bias = nullptr,
                           .out = gate_up.data(),
                           .out_stride = 2 * cols,
                           .rows = rows},
                          bits, dtype, nullptr, QuantizedShape::kRows);
    DeviceArray<uint16_t> fused(static_cast<size_t>(rows * out_stride)), plain(fused.size());
    LaunchGate({.gate_up = gate_up.data(),
                .gate_up_stride = 2 * cols,
                .out = plain.data(),
                .out_stride = out_stride,
                .cols = cols,
                .gating = gating},
               dtype, rows, nullptr);
    DeviceArray<float> slice_sums(static_cast<size_t>(SliceSumsFloats(rows, 2 * cols, k)));
    LaunchQuantizedMatMulGated({.x = x.data(),
                                .x_stride = x_stride,
                                .w = w.view,
                                .out = fused.data(),
                                .out_stride = out_stride,
                                .rows = rows,
                                .gating = gating,
                                .tile_rows = tile_rows,
                                .slice_sums = slice_sums.data(),
                                .slice_sums_floats = static_cast<int64_t>(slice_sums.size())},
                               bits, dtype, nullptr, shape);
    ASSERT_TRUE(fused.MarginsIntact() && slice_sums.MarginsIntact());
    ASSERT_EQ(fused.values(), plain.values());
  }
}

// The norm of x in the kernel, and a product added to the residual: the bits of two kernels.
TEST_F(CudaQuantizedTest, NormedAndAddedProductsHaveTheBitsOfTheTwo) {
  for (int round = 0; round < Rounds(48, 24); ++round) {
    const int bits = round % 2 == 0 ? 4 : 8;
    const DType dtype = MultipliesBFloat16() && round % 4 < 2 ? DType::kBF16 : DType::kF16;
    int rows = 0, k = 0;
    do {
      rows = Int(1, 8);
      k = 8 * (Int(0, 3) == 0 ? Int(100, 512) : Int(1, 60));
    } while (!NormsInProduct(rows, k));
    const int cols = 8 * Int(1, 9), n = Coin() ? 2 * cols : Int(1, 140);
    const int group_sizes[] = {32, 32, 64, 128, 256, k};
    const int group_size = group_sizes[Int(0, 5)];
    const bool bf16_scales = dtype == DType::kBF16 && Coin(), symmetric = Coin();
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << bits << " bits, " << rows << " x " << k << " by "
                 << n << " or 2 x " << cols << ", groups of " << group_size << ", " << Name(dtype));
    emulated::SetOptions(
        {.compute_capability = dtype == DType::kF16 && Coin() ? 75 : 80, .seed = random_()});
    const Weights w = RandomWeights(bits, n, k, group_size, bf16_scales, symmetric);
    const Weights gate_up = RandomWeights(bits, 2 * cols, k, group_size, bf16_scales, symmetric);
    const int64_t x_stride = k + 8 * Int(0, 2), out_stride = n + Int(0, 3);
    const int64_t gated_stride = cols + 8 * Int(0, 2);
    DeviceArray<float> x(static_cast<size_t>(rows * x_stride)), weight(static_cast<size_t>(k));
    const float spread = std::exp(Normal(2));
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < k; ++i) x[static_cast<size_t>(row * x_stride + i)] = Normal(spread);
    }
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = 1 + Normal(0.2f);
    DeviceArray<float> bias(static_cast<size_t>(n));
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = Normal();
    const float* const biases = Coin() ? bias.data() : nullptr;
    const Gating gating = {.kind = static_cast<GateKind>(Int(0, 2)), .scale = 0.25f};
    const NormedInput input = {
        .x = x.data(), .x_stride = x_stride, .weight = weight.data(), .eps = 1e-6f};

    DeviceArray<uint16_t> normed(static_cast<size_t>(rows * k));
    NormLaunch norm = {};
    norm.x = x.data();
    norm.x_stride = x_stride;
    norm.weight = weight.data();
    norm.out = normed.data();
    norm.out_stride = norm.cols = k;
    norm.eps = 1e-6f;
    LaunchNorm(norm, dtype, rows, nullptr);
    DeviceArray<float> apart(static_cast<size_t>(rows * out_stride)), together(apart.size());
    QuantizedMatMulLaunch product = {.x = normed.data(),
                                     .x_stride = k,
                                     .w = w.view,
                                     .bias = biases,
                                     .out = apart.data(),
                                     .out_stride = out_stride,
                                     .rows = rows};
    LaunchQuantizedMatMul(product, bits, dtype, nullptr);
    LaunchQuantizedNormed({.input = input,
                           .w = w.view,
                           .bias = biases,
                           .out = together.data(),
                           .out_stride = out_stride,
                           .rows = rows},
                          bits, dtype, nullptr);
    // Between the rows and behind them, too.
    ASSERT_EQ(std::memcmp(apart.data(), together.data(), apart.size() * sizeof(float)), 0);
    ASSERT_TRUE(together.MarginsIntact());

    DeviceArray<uint16_t> gated_apart(static_cast<size_t>(rows * gated_stride));
    DeviceArray<uint16_t> gated_together(gated_apart.size());
    LaunchQuantizedMatMulGated({.x = normed.data(),
                                .x_stride = k,
                                .w = gate_up.view,
                                .out = gated_apart.data(),
                                .out_stride = gated_stride,
                                .rows = rows,
                                .gating = gating},
                               bits, dtype, nullptr);
    LaunchQuantizedNormedGated({.input = input,
                                .w = gate_up.view,
                                .out = gated_together.data(),
                                .out_stride = gated_stride,
                                .rows = rows,
                                .gating = gating},
                               bits, dtype, nullptr);
    ASSERT_EQ(std::memcmp(gated_apart.data(), gated_together.data(),
                          gated_apart.size() * sizeof(uint16_t)),
              0);
    ASSERT_TRUE(gated_together.MarginsIntact());

    // What was a delta is added at once.
    const int added_rows = Int(1, kAddedRows);
    DeviceArray<uint16_t> rounded(static_cast<size_t>(added_rows * k));
    for (size_t i = 0; i < rounded.size(); ++i) rounded[i] = Round16(Normal(), dtype);
    DeviceArray<float> delta(static_cast<size_t>(added_rows * out_stride));
    product.x = rounded.data();
    product.rows = added_rows;
    product.out = delta.data();
    LaunchQuantizedMatMul(product, bits, dtype, nullptr, QuantizedShape::kTile);
    DeviceArray<float> residual(delta.size());
    for (size_t i = 0; i < residual.size(); ++i) residual[i] = Normal(3);
    DeviceArray<float> expected = residual;
    for (int row = 0; row < added_rows; ++row) {
      for (int i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(row * out_stride + i);
        expected[at] = std::fma(delta[at], 0.22f, residual[at]);
      }
    }
    product.out = residual.data();
    product.added_scale = 0.22f;
    LaunchQuantizedMatMul(product, bits, dtype, nullptr);
    ASSERT_EQ(std::memcmp(residual.data(), expected.data(), residual.size() * sizeof(float)), 0);
  }
}

TEST_F(CudaQuantizedTest, GathersColumns) {
  for (int round = 0; round < 20; ++round) {
    ChangeMachine();
    const int rows = Int(1, 20), cols = 8 * Int(1, 300);
    const int64_t stride = cols + 8 * Int(0, 2);
    DeviceArray<uint16_t> x(static_cast<size_t>(rows * stride)),
        out(static_cast<size_t>(rows * cols));
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(random_());
    std::vector<int32_t> order(static_cast<size_t>(cols));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    const DeviceArray<int32_t> d_order(order);
    LaunchGatherColumns({.x = x.data(),
                         .x_stride = stride,
                         .order = d_order.data(),
                         .out = out.data(),
                         .cols = cols},
                        rows, nullptr);
    ASSERT_TRUE(out.MarginsIntact());
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < cols; ++c) {
        ASSERT_EQ(out[static_cast<size_t>(r * cols + c)],
                  x[static_cast<size_t>(r * stride + order[static_cast<size_t>(c)])]);
      }
    }
  }
}

}  // namespace
}  // namespace baton::backend::cuda
