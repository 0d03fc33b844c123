// Routers by sigmoid, whose choice a bias decides, on the emulated device.
#include "common/backend/cuda/expert_operations.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/backend/cuda/kernels/experts.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

class CudaSigmoidRouterTest : public KernelTest {};

TEST_F(CudaSigmoidRouterTest, ChoosesByScoreAndBiasAndWeighsByScore) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(30, 6); ++round) {
    ChangeMachine();
    const int rows = Int(1, 9), experts = Int(1, round % 2 == 0 ? 70 : kMostExperts);
    const int per_token = Int(1, std::min(experts, kMostChoices));
    const bool normalized = Coin(), biased = Int(0, 3) > 0;
    const float scale = Coin() ? 1.0f : 1.8f;
    DeviceArray<float> logits(static_cast<size_t>(rows * experts)), bias(512);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = Normal(round % 3 == 0 ? 20.0f : 2.0f);
    for (size_t i = 0; i < bias.size(); ++i) bias[i] = Normal(0.5f);
    DeviceArray<int32_t> chosen(static_cast<size_t>(rows * per_token));
    DeviceArray<float> weights(chosen.size());
    DeviceArray<unsigned> counts(std::vector<unsigned>(static_cast<size_t>(experts), 0));
    LaunchChooseExperts({.logits = logits.data(),
                         .logit_stride = experts,
                         .chosen = chosen.data(),
                         .weights = weights.data(),
                         .counts = counts.data(),
                         .rows = rows,
                         .experts = experts,
                         .per_token = per_token,
                         .normalized = normalized,
                         .sigmoid = true,
                         .scale = scale,
                         .choice_bias = biased ? bias.data() : nullptr},
                        nullptr);
    ASSERT_TRUE(chosen.MarginsIntact() && weights.MarginsIntact() && counts.MarginsIntact());
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
        const double want = score(mine[j]) / (normalized ? sum + 1e-20 : 1) * double{scale};
        ASSERT_NEAR(weights[static_cast<size_t>(row * per_token + j)], want, 4e-6 * want + 1e-30);
      }
    }
    unsigned all = 0;
    for (const unsigned count : counts.values()) all += count;
    EXPECT_EQ(all, static_cast<unsigned>(rows * per_token));
  }
}

}  // namespace
}  // namespace baton::backend::cuda
