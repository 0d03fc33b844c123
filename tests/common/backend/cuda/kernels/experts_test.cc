// Routing of experts on the emulated device against the CPU's, and the sums of their results.
#include "common/backend/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/common/backend/cuda/kernels/experts_kernel_test.h"

namespace baton::backend::cuda {
namespace {

TEST_F(CudaExpertsTest, LogitsAreTheProductInFloat32ForAnyNumberOfRows) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(24, 8); ++round) {
    // Every kernel has its turn.
    DType dtype = round / 2 % 2 == 0 || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
    ChangeMachineOf(dtype);
    if (round % 8 >= 6) dtype = DType::kF32;
    const int rows = round % 2 == 0 ? 1 : Int(2, 20), experts = Int(1, 40), cols = 8 * Int(1, 90);
    const int64_t stride = cols + 8 * Int(0, 2), logit_stride = experts + Int(0, 3);
    const auto size = static_cast<size_t>(rows * stride);
    const bool wide = dtype == DType::kF32;
    const DeviceArray<uint16_t> x16 = Random16(wide ? 1 : size, wide ? DType::kF16 : dtype);
    DeviceArray<float> x32(wide ? size : 1);
    for (size_t i = 0; i < x32.size(); ++i) x32[i] = Normal();
    const auto x = [&](int64_t row) {
      return wide ? static_cast<const void*>(x32.data() + row * stride)
                  : static_cast<const void*>(x16.data() + row * stride);
    };
    DeviceArray<float> router(static_cast<size_t>(experts * cols)), bias(40);
    for (size_t i = 0; i < router.size(); ++i) router[i] = Normal();
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = Normal();
    DeviceArray<unsigned> counts(static_cast<size_t>(experts));
    const auto run = [&](int first, int count) {
      DeviceArray<float> logits(static_cast<size_t>(count * logit_stride));
      LaunchRouter({.x = x(first),
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
          const auto at = static_cast<size_t>(row * stride + c);
          const double product = double{wide ? x32[at] : ToF32(&x16[at], dtype)} *
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
    // Rows behind the real ones are padding.
    const int real = Coin() ? rows : Int(1, rows);
    std::vector<int32_t> positions(static_cast<size_t>(rows), -1);
    std::iota(positions.begin(), positions.begin() + real, 0);
    const DeviceArray<int32_t> d_positions(positions);
    const bool scaled = Coin();
    DeviceArray<float> scales(static_cast<size_t>(experts));
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = scaled ? Normal() : 1;
    const auto [chosen, weights, counts] = Choose(
        logits, rows, stride, experts, routing, nullptr,
        real == rows && Coin() ? nullptr : d_positions.data(), scaled ? scales.data() : nullptr);
    std::vector<unsigned> expected_counts(static_cast<size_t>(experts));
    std::vector<ChosenExpert> expected(static_cast<size_t>(per_token));
    for (int row = 0; row < rows; ++row) {
      const int source = row < real ? row : 0;
      ChooseExperts({logits.data() + source * stride, static_cast<size_t>(experts)}, {}, routing,
                    absl::MakeSpan(expected));
      for (int j = 0; j < per_token; ++j) {
        const auto pair = static_cast<size_t>(row * per_token + j);
        const ChosenExpert& each = expected[static_cast<size_t>(j)];
        ASSERT_EQ(chosen[pair], each.expert) << "row " << row;
        ++expected_counts[static_cast<size_t>(each.expert)];
        if (source == bad_row) {
          ASSERT_TRUE(std::isnan(weights[pair]));
        } else {
          // The exponents are in float32, and the CPU's exponentials end at 2^-44.
          const float exponents = 1 + std::fabs(std::log(each.weight + 1e-30f));
          const float scale = scales[static_cast<size_t>(each.expert)];
          ASSERT_NEAR(weights[pair], each.weight * scale,
                      (2e-6f * exponents * each.weight + 1e-12f) * std::fabs(scale));
        }
      }
    }
    EXPECT_EQ(counts.values(), expected_counts);
  }
}

TEST_F(CudaExpertsTest, RoutersBySigmoidChooseByScoreAndBiasAndWeighByScore) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(30, 6); ++round) {
    ChangeMachine();
    const int rows = Int(1, 9), experts = Int(1, round % 2 == 0 ? 70 : kMostExperts);
    const int per_token = Int(1, std::min(experts, kMostChoices));
    const ExpertRouting routing = {.per_token = per_token,
                                   .normalized = Coin(),
                                   .sigmoid = true,
                                   .scale = Coin() ? 1.0f : 1.8f};
    const bool biased = Int(0, 3) > 0;
    DeviceArray<float> logits(static_cast<size_t>(rows * experts)), bias(512);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = Normal(round % 3 == 0 ? 20.0f : 2.0f);
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = Normal(0.5f);
    const auto [chosen, weights, counts] =
        Choose(logits, rows, experts, experts, routing, biased ? bias.data() : nullptr);
    for (int row = 0; row < rows; ++row) {
      const auto score = [&](int expert) {
        return 1 / (1 + std::exp(-double{logits[static_cast<size_t>(row * experts + expert)]}));
      };
      const auto rank = [&](int expert) {
        return score(expert) + (biased ? double{bias[static_cast<size_t>(expert)]} : 0);
      };
      const int32_t* mine = chosen.data() + row * per_token;
      ASSERT_TRUE(std::adjacent_find(mine, mine + per_token, std::greater_equal<>()) ==
                  mine + per_token)
          << "not in the order of the experts";
      double least = rank(mine[0]), sum = 0;
      for (int j = 0; j < per_token; ++j) {
        ASSERT_TRUE(mine[j] >= 0 && mine[j] < experts);
        least = std::min(least, rank(mine[j]));
        sum += score(mine[j]);
      }
      for (int expert = 0; expert < experts; ++expert) {
        if (std::find(mine, mine + per_token, expert) != mine + per_token) continue;
        // What is nearer than float32 tells apart may be either.
        ASSERT_LE(rank(expert), least + 1e-6) << "row " << row << ", expert " << expert;
      }
      for (int j = 0; j < per_token; ++j) {
        const double want =
            score(mine[j]) / (routing.normalized ? sum + 1e-20 : 1) * double{routing.scale};
        ASSERT_NEAR(weights[static_cast<size_t>(row * per_token + j)], want, 4e-6 * want + 1e-30);
      }
    }
    unsigned all = 0;
    for (const unsigned count : counts.values()) all += count;
    EXPECT_EQ(all, static_cast<unsigned>(rows * per_token));
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

TEST_F(CudaExpertsTest, OnlyChosenExpertsAreFetchedAndWhole) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(12, 4); ++round) {
    ChangeMachine();
    const int experts = Int(1, 6);
    // Words; up to several pieces, and several turns of a block.
    const auto size = [&] { return int64_t{4} * (Coin() ? Int(1, 40) : Int(1, 40'000)); };
    const int64_t gate_up = size(), down = size();
    const int64_t down_at = gate_up + 4 * Int(0, 3), stride = down_at + down + 4 * Int(0, 3);
    std::vector<DeviceArray<float>> matrices;  // of each expert two
    std::vector<unsigned> counts(static_cast<size_t>(experts));
    std::vector<ExpertSource> sources;
    for (int expert = 0; expert < experts; ++expert) {
      for (const int64_t words : {gate_up, down}) {
        DeviceArray<float>& matrix = matrices.emplace_back(static_cast<size_t>(words));
        for (size_t i = 0; i < matrix.size(); ++i) {
          matrix[i] = static_cast<float>(matrices.size() * 1'000'000 + i);
        }
      }
      counts[static_cast<size_t>(expert)] = Coin() ? 0u : static_cast<unsigned>(Int(1, 9));
      sources.push_back({});
    }
    for (size_t i = 0; i < sources.size(); ++i) {
      sources[i] = {reinterpret_cast<const std::byte*>(matrices[2 * i].data()),
                    reinterpret_cast<const std::byte*>(matrices[2 * i + 1].data())};
    }
    const bool all = Coin();
    const DeviceArray<ExpertSource> d_sources(sources);
    const DeviceArray<unsigned> d_counts(counts);
    DeviceArray<float> to(static_cast<size_t>(experts * stride));
    LaunchFetchExperts({.sources = d_sources.data(),
                        .to = reinterpret_cast<std::byte*>(to.data()),
                        .gate_up_bytes = 4 * gate_up,
                        .down_bytes = 4 * down,
                        .down_offset = 4 * down_at,
                        .stride_bytes = 4 * stride,
                        .counts = all ? nullptr : d_counts.data(),
                        .experts = experts},
                       nullptr);
    ASSERT_TRUE(to.MarginsIntact());
    for (int64_t i = 0; i < experts * stride; ++i) {
      const auto expert = static_cast<size_t>(i / stride);
      const int64_t at = i % stride;
      const float found = to[static_cast<size_t>(i)];
      const bool fetched = all || counts[expert] > 0;
      if (fetched && at < gate_up) {
        ASSERT_EQ(found, matrices[2 * expert][static_cast<size_t>(at)]);
      } else if (fetched && at >= down_at && at < down_at + down) {
        ASSERT_EQ(found, matrices[2 * expert + 1][static_cast<size_t>(at - down_at)]);
      } else {
        ASSERT_TRUE(std::isnan(found)) << "written where nothing is fetched";
      }
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
