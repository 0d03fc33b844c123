// Grouped products of experts on the emulated device against the products of one matrix, whose bits
// they must have.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "common/backend/cuda/kernels/matmul.h"
#include "tests/common/backend/cuda/kernels/experts_kernel_test.h"

namespace baton::backend::cuda {
namespace {

// Each kernel of both products: every tile size of every width of weights.
TEST_F(CudaExpertsTest, ProductsHaveTheBitsOfOneMatrixAlone) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 36; ++round) {
    const int bits = round % 3 == 0 ? 16 : round % 3 == 1 ? 4 : 8;
    const int tile_rows = round / 3 % 3 == 0   ? kLeastTileRows
                          : round / 3 % 3 == 1 ? kMiddleTileRows
                                               : kMostTileRows;
    const DType dtype = round / 9 % 2 == 0 || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
    ChangeMachineOf(dtype);
    const int experts = Int(2, 5), per_token = Int(1, 2), rows = Int(1, Coin() ? 6 : 45);
    const bool long_k = Int(0, 5) == 0;
    const int n = 16 * Int(1, long_k ? 2 : 6), k = 8 * (long_k ? Int(150, 300) : Int(1, 30));
    const int group_size = Coin() ? 32 : k;
    const bool biased = Coin(), symmetric = Coin();
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << rows << " x " << k << " by "
                                      << n << ", " << bits << " bits, tiles of " << tile_rows);
    const std::vector<int32_t> chosen = RandomChoices(rows, experts, per_token);
    const Places places = Place(chosen, experts, per_token, tile_rows);
    const int pairs = static_cast<int>(chosen.size());
    const int64_t x_stride = k + 8 * Int(0, 1), out_stride = n + 4 * Int(0, 1);
    const DeviceArray<uint16_t> x = Random16(static_cast<size_t>(rows * x_stride), dtype);

    std::vector<DeviceArray<uint16_t>> plain;
    std::vector<Weights> quantized;
    std::vector<DeviceArray<float>> biases;
    std::vector<ExpertMatrix> entries;
    for (int expert = 0; expert < experts; ++expert) {
      biases.emplace_back(static_cast<size_t>(n));
      for (int i = 0; i < n; ++i) biases.back()[static_cast<size_t>(i)] = Normal();
      const float* const bias = biased ? biases.back().data() : nullptr;
      if (bits == 16) {
        plain.push_back(Random16(static_cast<size_t>(n * k), dtype));
        entries.push_back({plain.back().data(), nullptr, bias});
      } else {
        quantized.push_back(RandomWeights(bits, n, k, group_size, false, symmetric));
        entries.push_back({quantized.back().view.values, quantized.back().view.groups, bias});
      }
    }
    const DeviceArray<ExpertMatrix> table(entries);
    ExpertOperands operands = {};
    operands.matrices = table.data();
    if (bits == 16) {
      operands.w.n = n;
      operands.w.k = k;
    } else {
      operands.w = quantized[0].view;
      operands.w.values = operands.w.groups = nullptr;
    }
    operands.bits = bits;
    operands.tiles = places.tiles.data();
    operands.tile_count = static_cast<int>(places.tiles.size());
    operands.tile_rows = tile_rows;

    // Rows of the step to places: the gated product. Without biases, which gate and up of a matrix
    // alone do not have.
    std::vector<ExpertMatrix> unbiased = entries;
    for (ExpertMatrix& entry : unbiased) entry.bias = nullptr;
    const DeviceArray<ExpertMatrix> unbiased_table(unbiased);
    const int cols = n / 2;
    const Gating gating = {.kind = static_cast<GateKind>(Int(0, 2)), .scale = 0.5f};
    DeviceArray<uint16_t> gated(static_cast<size_t>(pairs * cols));
    ExpertMatMulGatedLaunch gated_launch = {
        .operands = operands, .out = gated.data(), .out_stride = cols, .gating = gating};
    gated_launch.operands.matrices = unbiased_table.data();
    gated_launch.operands.x = x.data();
    gated_launch.operands.x_stride = x_stride;
    gated_launch.operands.x_rows = places.rows.data();
    LaunchExpertMatMulGated(gated_launch, dtype, nullptr);
    ASSERT_TRUE(gated.MarginsIntact());

    // From places (here the rows of `ordered`) to pairs: the other product.
    const DeviceArray<uint16_t> ordered = Random16(static_cast<size_t>(pairs * x_stride), dtype);
    DeviceArray<float> out(static_cast<size_t>(pairs * out_stride));
    ExpertMatMulLaunch launch = {.operands = operands,
                                 .out = out.data(),
                                 .out_stride = out_stride,
                                 .out_rows = places.pairs.data()};
    launch.operands.x = ordered.data();
    launch.operands.x_stride = x_stride;
    LaunchExpertMatMul(launch, dtype, nullptr);
    ASSERT_TRUE(out.MarginsIntact());

    for (int place = 0; place < pairs; ++place) {
      const int pair = places.pairs[static_cast<size_t>(place)];
      const auto expert = static_cast<size_t>(chosen[static_cast<size_t>(pair)]);
      DeviceArray<float> alone(static_cast<size_t>(n));
      DeviceArray<uint16_t> gated_alone(static_cast<size_t>(cols));
      const uint16_t* const from = ordered.data() + place * x_stride;
      const uint16_t* const gated_from = x.data() + pair / per_token * x_stride;
      const float* const bias = entries[expert].bias;
      if (bits == 16) {
        const void* const w = plain[expert].data();
        LaunchMatMul({from, x_stride, w, bias, alone.data(), n, 1, n, k}, dtype, nullptr);
        LaunchMatMulGated({gated_from, x_stride, w, gated_alone.data(), cols, 1, cols, k, gating},
                          dtype, nullptr);
      } else {
        const QuantizedView& w = quantized[expert].view;
        LaunchQuantizedMatMul({from, x_stride, w, bias, alone.data(), n, 1}, bits, dtype, nullptr);
        LaunchQuantizedMatMulGated({gated_from, x_stride, w, gated_alone.data(), cols, 1, gating},
                                   bits, dtype, nullptr);
      }
      ASSERT_EQ(std::memcmp(alone.data(), &out[static_cast<size_t>(pair * out_stride)],
                            static_cast<size_t>(n) * sizeof(float)),
                0)
          << "place " << place;
      ASSERT_EQ(std::memcmp(gated_alone.data(), &gated[static_cast<size_t>(place * cols)],
                            static_cast<size_t>(cols) * sizeof(uint16_t)),
                0)
          << "place " << place;
    }
    for (int64_t pair = 0; pair < pairs; ++pair) {
      for (int64_t i = n; i < out_stride; ++i) {
        ASSERT_TRUE(std::isnan(out[static_cast<size_t>(pair * out_stride + i)]));
      }
    }
  }
}

// Gate and up with biases, against the product and what gates it, in float32.
TEST_F(CudaExpertsTest, BiasesOfGateAndUpAreAddedBeforeTheGate) {
  SCOPED_TRACE(seed_);
  for (const int tile_rows : {kLeastTileRows, kMiddleTileRows, kMostTileRows}) {
    for (const int bits : {16, 4}) {
      const int rows = Int(1, 10), k = 64, n = 32, cols = n / 2;
      ChangeMachineOf(DType::kF16);
      const DeviceArray<uint16_t> x = Random16(static_cast<size_t>(rows * k), DType::kF16);
      const DeviceArray<uint16_t> w = Random16(static_cast<size_t>(n * k), DType::kF16);
      const Weights few = RandomWeights(4, n, k, 32, false);
      DeviceArray<float> bias(static_cast<size_t>(n));
      for (int i = 0; i < n; ++i) bias[static_cast<size_t>(i)] = Normal();
      const Places places =
          Place(std::vector<int32_t>(static_cast<size_t>(rows), 0), 1, 1, tile_rows);
      const DeviceArray<ExpertMatrix> table(std::vector<ExpertMatrix>{
          bits == 16 ? ExpertMatrix{w.data(), nullptr, bias.data()}
                     : ExpertMatrix{few.view.values, few.view.groups, bias.data()}});
      ExpertOperands operands = {};
      operands.x = x.data();
      operands.x_stride = k;
      operands.matrices = table.data();
      operands.w = few.view;
      operands.bits = bits;
      operands.tiles = places.tiles.data();
      operands.tile_count = static_cast<int>(places.tiles.size());
      operands.tile_rows = tile_rows;
      DeviceArray<float> sums(static_cast<size_t>(rows * n));
      LaunchExpertMatMul({.operands = operands,
                          .out = sums.data(),
                          .out_stride = n,
                          .out_rows = places.pairs.data()},
                         DType::kF16, nullptr);
      DeviceArray<uint16_t> gated(static_cast<size_t>(rows * cols));
      LaunchExpertMatMulGated({.operands = operands, .out = gated.data(), .out_stride = cols},
                              DType::kF16, nullptr);
      for (int row = 0; row < rows; ++row) {
        for (int i = 0; i < cols; ++i) {
          const double gate = double{sums[static_cast<size_t>(row * n + i)]};
          const double up = double{sums[static_cast<size_t>(row * n + cols + i)]};
          const double expected = gate / (1 + std::exp(-gate)) * up;
          ASSERT_NEAR(double{ToF32(&gated[static_cast<size_t>(row * cols + i)], DType::kF16)},
                      expected, 6e-4 * std::fabs(expected) + 1e-6);
        }
      }
    }
  }
}

// Against the products with the 16-bit values that the numbers stand for.
TEST_F(CudaExpertsTest, ProductsWithMxfp4AreThoseWithItsNumbers) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 12; ++round) {
    const int tile_rows = round % 3 == 0   ? kLeastTileRows
                          : round % 3 == 1 ? kMiddleTileRows
                                           : kMostTileRows;
    const DType dtype = round / 3 % 2 == 0 || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
    ChangeMachineOf(dtype);
    const int experts = Int(1, 3), rows = Int(1, 40), n = 16 * Int(1, 4), k = 32 * Int(1, 12);
    const std::vector<int32_t> chosen = RandomChoices(rows, experts, 1);
    const Places places = Place(chosen, experts, 1, tile_rows);
    const DeviceArray<uint16_t> x = Random16(static_cast<size_t>(rows * k), dtype);
    std::vector<Weights> weights;
    std::vector<DeviceArray<uint16_t>> wide;
    std::vector<ExpertMatrix> few_entries, wide_entries;
    for (int expert = 0; expert < experts; ++expert) {
      weights.push_back(RandomFp4(n, k, dtype));
      const Weights& w = weights.back();
      wide.emplace_back(w.exact.size());
      for (size_t i = 0; i < w.exact.size(); ++i) {
        wide.back()[i] = Round16(w.exact[i], dtype);
        ASSERT_EQ(ToF32(&wide.back()[i], dtype), w.exact[i]) << "the test wants exact ones";
      }
      few_entries.push_back({w.view.values, w.view.groups, nullptr});
      wide_entries.push_back({wide.back().data(), nullptr, nullptr});
    }
    const DeviceArray<ExpertMatrix> few_table(few_entries), wide_table(wide_entries);
    const auto run = [&](const DeviceArray<ExpertMatrix>& table, int bits, bool gated) {
      ExpertOperands operands = {};
      operands.x = x.data();
      operands.x_stride = k;
      operands.x_rows = places.rows.data();
      operands.matrices = table.data();
      operands.w = weights[0].view;
      operands.w.values = operands.w.groups = nullptr;
      operands.bits = bits;
      operands.tiles = places.tiles.data();
      operands.tile_count = static_cast<int>(places.tiles.size());
      operands.tile_rows = tile_rows;
      DeviceArray<std::byte> out(static_cast<size_t>(rows * n) * sizeof(float));
      if (gated) {
        LaunchExpertMatMulGated({.operands = operands, .out = out.data(), .out_stride = n / 2},
                                dtype, nullptr);
      } else {
        LaunchExpertMatMul({.operands = operands,
                            .out = reinterpret_cast<float*>(out.data()),
                            .out_stride = n,
                            .out_rows = places.pairs.data()},
                           dtype, nullptr);
      }
      EXPECT_TRUE(out.MarginsIntact());
      return out.values();
    };
    for (const bool gated : {false, true}) {
      EXPECT_EQ(run(few_table, kFp4, gated), run(wide_table, 16, gated))
          << "round " << round << ", gated " << gated;
    }
  }
}

}  // namespace
}  // namespace baton::backend::cuda
