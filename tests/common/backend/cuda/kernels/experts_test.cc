// Experts on the emulated device: routing against the CPU's, grouped products against the products
// of one matrix, whose bits they must have.
#include "common/backend/cuda/kernels/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/experts.h"
#include "tests/common/backend/cuda/kernels/quantized_weights.h"

namespace baton::backend::cuda {
namespace {

class CudaExpertsTest : public QuantizedKernelTest {
 protected:
  void ChangeMachineOf(DType dtype) {
    emulated::SetOptions(
        {.compute_capability = dtype == DType::kF16 && Coin() ? 75 : 80, .seed = random_()});
  }
  DeviceArray<uint16_t> Random16(size_t size, DType dtype) {
    DeviceArray<uint16_t> values(size);
    for (size_t i = 0; i < size; ++i) values[i] = Round16(Normal(), dtype);
    return values;
  }

  // What LaunchPlacePairs makes.
  struct Places {
    DeviceArray<int32_t> pairs, rows;
    DeviceArray<ExpertTile> tiles;
    int tile_rows = 0;
  };
  static Places Place(const std::vector<int32_t>& chosen, int experts, int per_token,
                      int tile_rows) {
    const DeviceArray<int32_t> d_chosen(chosen);
    std::vector<unsigned> counts(static_cast<size_t>(experts));
    for (const int32_t expert : chosen) ++counts[static_cast<size_t>(expert)];
    const DeviceArray<unsigned> d_counts(counts);
    const int pairs = static_cast<int>(chosen.size());
    const int tiles = ExpertTileCount(pairs, experts, tile_rows);
    Places places = {DeviceArray<int32_t>(chosen.size()), DeviceArray<int32_t>(chosen.size()),
                     DeviceArray<ExpertTile>(static_cast<size_t>(tiles)), tile_rows};
    LaunchPlacePairs({.chosen = d_chosen.data(),
                      .counts = d_counts.data(),
                      .pairs = places.pairs.data(),
                      .rows = places.rows.data(),
                      .tiles = places.tiles.data(),
                      .pair_count = pairs,
                      .per_token = per_token,
                      .experts = experts,
                      .tile_rows = tile_rows,
                      .tile_count = tiles},
                     nullptr);
    EXPECT_TRUE(places.pairs.MarginsIntact() && places.rows.MarginsIntact() &&
                places.tiles.MarginsIntact());
    return places;
  }

  // Different experts for each row, ascending, of which a few are chosen more often.
  std::vector<int32_t> RandomChoices(int rows, int experts, int per_token) {
    std::vector<int32_t> chosen;
    for (int row = 0; row < rows; ++row) {
      std::vector<int32_t> all(static_cast<size_t>(experts));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin() + Int(0, per_token), all.end(), random_);
      std::sort(all.begin(), all.begin() + per_token);
      chosen.insert(chosen.end(), all.begin(), all.begin() + per_token);
    }
    return chosen;
  }
};

TEST_F(CudaExpertsTest, LogitsAreTheProductInFloat32ForAnyNumberOfRows) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(16, 6); ++round) {
    // Every kernel has its turn.
    const DType dtype = round / 2 % 2 == 0 || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
    ChangeMachineOf(dtype);
    const int rows = round % 2 == 0 ? 1 : Int(2, 20), experts = Int(1, 40), cols = 8 * Int(1, 90);
    const int64_t stride = cols + 8 * Int(0, 2), logit_stride = experts + Int(0, 3);
    const DeviceArray<uint16_t> x = Random16(static_cast<size_t>(rows * stride), dtype);
    DeviceArray<float> router(static_cast<size_t>(experts * cols)), bias(40);
    for (size_t i = 0; i < router.size(); ++i) router[i] = Normal();
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = Normal();
    DeviceArray<unsigned> counts(static_cast<size_t>(experts));
    const auto run = [&](int first, int count) {
      DeviceArray<float> logits(static_cast<size_t>(count * logit_stride));
      LaunchRouter({.x = x.data() + first * stride,
                    .x_stride = stride,
                    .router = router.data(),
                    .bias = round % 3 == 0 ? nullptr : bias.data(),
                    .logits = logits.data(),
                    .logit_stride = logit_stride,
                    .counts = counts.data(),
                    .rows = count,
                    .cols = cols,
                    .experts = experts},
                   dtype, nullptr);
      EXPECT_TRUE(logits.MarginsIntact() && counts.MarginsIntact());
      EXPECT_EQ(counts.values(), std::vector<unsigned>(static_cast<size_t>(experts), 0));
      return logits;
    };
    const DeviceArray<float> logits = run(0, rows);
    for (int row = 0; row < rows; ++row) {
      const DeviceArray<float> alone = run(row, 1);
      for (int i = 0; i < logit_stride; ++i) {
        const float found = logits[static_cast<size_t>(row * logit_stride + i)];
        if (i >= experts) {
          ASSERT_TRUE(std::isnan(found)) << "written between rows";
          continue;
        }
        double sum = round % 3 == 0 ? 0 : double{bias[static_cast<size_t>(i)]}, size = 1;
        for (int c = 0; c < cols; ++c) {
          const double product = double{ToF32(&x[static_cast<size_t>(row * stride + c)], dtype)} *
                                 double{router[static_cast<size_t>(i * cols + c)]};
          sum += product;
          size += std::fabs(product);
        }
        ASSERT_NEAR(found, sum, 1e-6 * size) << "row " << row << ", expert " << i;
        ASSERT_EQ(std::memcmp(&found, &alone[static_cast<size_t>(i)], sizeof(float)), 0);
      }
    }
  }
}

TEST_F(CudaExpertsTest, ChoicesAreThoseOfTheCpu) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(30, 8); ++round) {
    ChangeMachine();
    const int rows = Int(1, 9), experts = Coin() ? Int(1, 40) : Int(1, kMostExperts);
    const int per_token = Int(1, std::min(experts, Coin() ? 8 : kMostChoices));
    const int64_t stride = experts + Int(0, 3);
    const ExpertRouting routing = {.per_token = per_token, .normalized = Coin()};
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << per_token << " of " << experts
                                      << " for " << rows << " rows");
    DeviceArray<float> logits(static_cast<size_t>(rows * stride));
    const int kind = Int(0, 3);
    for (size_t i = 0; i < logits.size(); ++i) {
      // Many equal ones, large ones, any.
      logits[i] = kind == 0 ? static_cast<float>(Int(-1, 1)) : Normal(kind == 1 ? 100.0f : 2.0f);
    }
    const int bad_row = kind == 3 ? Int(0, rows - 1) : -1;
    if (bad_row >= 0) {
      constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity()};
      logits[static_cast<size_t>(bad_row * stride + Int(0, experts - 1))] = kBad[Int(0, 2)];
    }
    DeviceArray<int32_t> chosen(static_cast<size_t>(rows * per_token));
    DeviceArray<float> weights(chosen.size());
    DeviceArray<unsigned> counts(std::vector<unsigned>(static_cast<size_t>(experts), 0));
    LaunchChooseExperts({.logits = logits.data(),
                         .logit_stride = stride,
                         .chosen = chosen.data(),
                         .weights = weights.data(),
                         .counts = counts.data(),
                         .rows = rows,
                         .experts = experts,
                         .per_token = per_token,
                         .normalized = routing.normalized},
                        nullptr);
    ASSERT_TRUE(chosen.MarginsIntact() && weights.MarginsIntact() && counts.MarginsIntact());
    std::vector<unsigned> expected_counts(static_cast<size_t>(experts));
    std::vector<ChosenExpert> expected(static_cast<size_t>(per_token));
    for (int row = 0; row < rows; ++row) {
      ChooseExperts({logits.data() + row * stride, static_cast<size_t>(experts)}, {}, routing,
                    absl::MakeSpan(expected));
      for (int j = 0; j < per_token; ++j) {
        const auto pair = static_cast<size_t>(row * per_token + j);
        const ChosenExpert& each = expected[static_cast<size_t>(j)];
        ASSERT_EQ(chosen[pair], each.expert) << "row " << row;
        ++expected_counts[static_cast<size_t>(each.expert)];
        if (row == bad_row) {
          ASSERT_TRUE(std::isnan(weights[pair]));
        } else {
          // The exponents are in float32, and the CPU's exponentials end at 2^-44.
          const float exponents = 1 + std::fabs(std::log(each.weight + 1e-30f));
          ASSERT_NEAR(weights[pair], each.weight, 2e-6f * exponents * each.weight + 1e-12f);
        }
      }
    }
    EXPECT_EQ(counts.values(), expected_counts);
  }
}

TEST_F(CudaExpertsTest, PlacesAreSortedByExpertAndCutIntoTiles) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(20, 6); ++round) {
    ChangeMachine();
    const int experts = Int(1, 70), per_token = Int(1, std::min(experts, 8)), rows = Int(1, 90);
    const int tile_rows = round % 3 == 0   ? kLeastTileRows
                          : round % 3 == 1 ? kMiddleTileRows
                                           : kMostTileRows;
    const std::vector<int32_t> chosen = RandomChoices(rows, experts, per_token);
    const Places places = Place(chosen, experts, per_token, tile_rows);
    std::vector<int32_t> sorted(chosen.size());
    std::iota(sorted.begin(), sorted.end(), 0);
    std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t a, int32_t b) {
      return chosen[static_cast<size_t>(a)] < chosen[static_cast<size_t>(b)];
    });
    EXPECT_EQ(places.pairs.values(), sorted);
    size_t tile = 0;
    for (size_t at = 0; at < sorted.size(); ++tile) {
      const ExpertTile& found = places.tiles[tile];
      ASSERT_EQ(found.first, static_cast<int>(at));
      ASSERT_TRUE(found.count > 0 && found.count <= tile_rows);
      for (int i = 0; i < found.count; ++i, ++at) {
        ASSERT_EQ(chosen[static_cast<size_t>(sorted[at])], found.expert);
        ASSERT_EQ(places.rows[at], sorted[at] / per_token);
      }
      // A tile that is not full is its expert's last.
      if (found.count < tile_rows && at < sorted.size()) {
        ASSERT_NE(chosen[static_cast<size_t>(sorted[at])], found.expert);
      }
    }
    for (; tile < places.tiles.size(); ++tile) ASSERT_EQ(places.tiles[tile].count, 0);
  }
}

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
    const bool biased = Coin();
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
        quantized.push_back(RandomWeights(bits, n, k, group_size, false));
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

TEST_F(CudaExpertsTest, SumsAreInTheOrderOfTheChoices) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(12, 5); ++round) {
    ChangeMachine();
    const int rows = Int(1, 5), per_token = Int(1, 9), cols = 4 * Int(1, 300);
    const int64_t result_stride = cols + 4 * Int(0, 2), out_stride = cols + 4 * Int(0, 2);
    DeviceArray<float> results(static_cast<size_t>(rows * per_token * result_stride));
    for (size_t i = 0; i < results.size(); ++i) results[i] = Normal();
    DeviceArray<float> weights(static_cast<size_t>(rows * per_token));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = std::fabs(Normal());
    DeviceArray<float> out(static_cast<size_t>(rows * out_stride));
    const bool accumulates = Coin();  // to 1 in all places
    for (int64_t i = 0; accumulates && i < rows * cols; ++i) {
      out[static_cast<size_t>(i / cols * out_stride + i % cols)] = 1;
    }
    LaunchSumExperts({.results = results.data(),
                      .result_stride = result_stride,
                      .weights = weights.data(),
                      .out = out.data(),
                      .out_stride = out_stride,
                      .cols = cols,
                      .per_token = per_token,
                      .accumulates = accumulates},
                     rows, nullptr);
    ASSERT_TRUE(out.MarginsIntact());
    for (int row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < out_stride; ++i) {
        const float found = out[static_cast<size_t>(row * out_stride + i)];
        if (i >= cols) {
          ASSERT_TRUE(std::isnan(found));
          continue;
        }
        float sum = accumulates ? 1 : 0;
        for (int64_t j = 0; j < per_token; ++j) {
          const int64_t pair = row * per_token + j;
          sum = std::fma(weights[static_cast<size_t>(pair)],
                         results[static_cast<size_t>(pair * result_stride + i)], sum);
        }
        ASSERT_EQ(found, sum);
      }
    }
  }
}

}  // namespace
}  // namespace baton::backend::cuda
