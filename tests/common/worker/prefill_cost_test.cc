#include "common/worker/prefill_cost.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace baton::worker {
namespace {

struct Truth {
  double fixed = 5e-3, token = 1.25e-4, pair = 3.9e-9;
  double Seconds(const PrefillWork& work) const {
    return fixed + token * work.tokens + pair * work.pairs;
  }
};

PrefillWork Work(double tokens, double context) {
  PrefillWork work;
  work.Add(tokens, context);
  return work;
}

class PrefillCostTest : public ::testing::Test {
 protected:
  PrefillWork RandomWork() {
    PrefillWork work;
    for (int prompts = 1 + random_() % 3; prompts > 0; --prompts) {
      work.Add(1 + random_() % 1500, random_() % 30'000);
    }
    return work;
  }
  double Noise(double share) {
    return std::max(0.1, 1 + share * std::normal_distribution<double>()(random_));
  }
  void Learn(const Truth& truth, int steps, double noise) {
    for (int i = 0; i < steps; ++i) {
      const PrefillWork work = RandomWork();
      cost_.StepTook(work, absl::Seconds(truth.Seconds(work) * Noise(noise)));
    }
  }
  double ErrorOf(const PrefillWork& work, const Truth& truth) {
    const double predicted = absl::ToDoubleSeconds(cost_.TimeFor(work, 1 << 20));
    return std::abs(predicted / truth.Seconds(work) - 1);
  }
  double WorstError(const Truth& truth) {
    double worst = 0;
    for (const PrefillWork& work :
         {Work(16, 0), Work(512, 0), Work(512, 16'000), Work(2000, 0), Work(2000, 30'000)}) {
      worst = std::max(worst, ErrorOf(work, truth));
    }
    return worst;
  }
  const uint64_t seed_ = ::testing::UnitTest::GetInstance()->random_seed();
  std::mt19937_64 random_{seed_};
  PrefillCost cost_;
};

TEST_F(PrefillCostTest, FindsTheCostsOfExactSteps) {
  SCOPED_TRACE(seed_);
  const Truth truth;
  Learn(truth, 200, 0);
  EXPECT_LT(WorstError(truth), 0.03);
  EXPECT_NEAR(cost_.token_us(), 125, 8);
  EXPECT_NEAR(cost_.pair_us(), 3.9e-3, 4e-4);
}

// Of many rounds, since how well one is found is a matter of luck. A step of 16 tokens is nearly all
// fixed cost, which steps of hundreds hardly tell: in 20,000 rounds it was off by more than a quarter
// in 2.4 %, the others by at most an eighth.
TEST_F(PrefillCostTest, FindsThemThroughNoise) {
  SCOPED_TRACE(seed_);
  const Truth truth;
  constexpr int kRounds = 200;
  int far_off = 0;
  for (int round = 0; round < kRounds; ++round) {
    cost_ = PrefillCost();
    Learn(truth, 300, 0.15);
    EXPECT_LT(ErrorOf(Work(512, 0), truth), 0.25);
    EXPECT_LT(ErrorOf(Work(2000, 30'000), truth), 0.25);
    far_off += WorstError(truth) > 0.25;
  }
  EXPECT_LT(far_off, kRounds / 10);
}

TEST_F(PrefillCostTest, KnowsNothingBeforeAFewSteps) {
  EXPECT_FALSE(cost_.known());
  cost_.StepTook(PrefillWork(), absl::Seconds(1));
  cost_.StepTook(Work(10, 0), absl::ZeroDuration());
  for (int i = 0; i < PrefillCost::kStepsToKnow; ++i) {
    EXPECT_FALSE(cost_.known());
    EXPECT_EQ(cost_.TimeFor(Work(100, 0), 2048), absl::ZeroDuration());
    cost_.StepTook(Work(100, 0), absl::Milliseconds(20));
  }
  EXPECT_TRUE(cost_.known());
  EXPECT_NEAR(absl::ToDoubleMilliseconds(cost_.TimeFor(Work(100, 0), 2048)), 20, 0.2);
}

// Steps that are all alike leave the shape open: the prior fills in, at the pace seen.
TEST_F(PrefillCostTest, StepsAllAlikeStillGiveSaneCosts) {
  for (int i = 0; i < 100; ++i) cost_.StepTook(Work(2048, 0), absl::Milliseconds(250));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(cost_.TimeFor(Work(2048, 0), 2048)), 250, 2);
  EXPECT_GT(cost_.fixed_us(), 0);
  EXPECT_NEAR(cost_.token_us(), 120, 15);
  EXPECT_GT(cost_.pair_us(), 0);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(cost_.TimeFor(Work(1024, 0), 2048)), 125, 15);
}

TEST_F(PrefillCostTest, NothingIsEverNegative) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 50; ++round) {
    PrefillCost cost;
    for (int step = 0; step < 40; ++step) {
      // Times that no such cost explains: longer steps are quicker.
      const PrefillWork work = RandomWork();
      cost.StepTook(work, absl::Seconds(Noise(0.5) / (1 + work.tokens)));
      ASSERT_GE(cost.fixed_us(), 0);
      ASSERT_GE(cost.token_us(), 0);
      ASSERT_GE(cost.pair_us(), 0);
      ASSERT_TRUE(std::isfinite(cost.fixed_us() + cost.token_us() + cost.pair_us()));
      if (cost.known()) {
        ASSERT_GT(cost.TimeFor(work, 2048), absl::ZeroDuration());
      }
    }
  }
}

TEST_F(PrefillCostTest, AStallIsForgivenAndASlowWorkerIsNot) {
  SCOPED_TRACE(seed_);
  const Truth truth;
  Learn(truth, 200, 0.02);
  for (int i = 0; i < 3; ++i) cost_.StepTook(Work(500, 0), absl::Seconds(30));
  EXPECT_LT(WorstError(truth), 0.25);
  Learn(truth, 50, 0.02);
  EXPECT_LT(WorstError(truth), 0.15);
  // Its clock is throttled to a tenth.
  const Truth slow = {50e-3, 1.25e-3, 3.9e-8};
  Learn(slow, 500, 0.02);
  EXPECT_LT(WorstError(slow), 0.15);
}

TEST_F(PrefillCostTest, WorkIsTimedByTheStepsThatItTakes) {
  SCOPED_TRACE(seed_);
  Learn(Truth(), 200, 0);
  const double one = absl::ToDoubleSeconds(cost_.TimeFor(Work(4000, 0), 4000));
  const double four = absl::ToDoubleSeconds(cost_.TimeFor(Work(4000, 0), 1000));
  EXPECT_NEAR((four - one) / 3, cost_.fixed_us() * 1e-6, 1e-6);
}

}  // namespace
}  // namespace baton::worker
