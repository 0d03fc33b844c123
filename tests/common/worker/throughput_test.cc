#include "common/worker/throughput.h"

#include <gtest/gtest.h>

#include "tests/router/fake_clock.h"

namespace baton::worker {
namespace {

class ThroughputTest : public ::testing::Test {
 protected:
  void Step(int64_t tokens, absl::Duration took) {
    throughput_.StepBegins();
    clock_.Advance(took);
    throughput_.StepEnds(tokens);
  }
  baton::testing::FakeClock clock_;
  Throughput throughput_{clock_, absl::Seconds(1)};
};

TEST_F(ThroughputTest, KnowsNothingBeforeAStepThatTookTime) {
  EXPECT_FALSE(throughput_.tokens_per_second().has_value());
  Step(100, absl::ZeroDuration());
  EXPECT_FALSE(throughput_.tokens_per_second().has_value());
  Step(0, absl::Seconds(1));
  EXPECT_TRUE(throughput_.tokens_per_second().has_value()) << "the 100 tokens count";
}

TEST_F(ThroughputTest, IsTheRateOfEqualStepsAndIdleTimeChangesNothing) {
  for (int i = 0; i < 20; ++i) {
    Step(50, absl::Milliseconds(100));
    EXPECT_NEAR(*throughput_.tokens_per_second(), 500, 1e-6);
    clock_.Advance(absl::Hours(1));
  }
}

TEST_F(ThroughputTest, AStepsWeightHalvesWithEachHalfLifeOfComputing) {
  Step(1000, absl::Seconds(1));
  Step(100, absl::Seconds(1));
  EXPECT_NEAR(*throughput_.tokens_per_second(), (1000 * 0.5 + 100) / (1 * 0.5 + 1), 1e-6);
  for (int i = 0; i < 10; ++i) Step(100, absl::Seconds(1));
  EXPECT_NEAR(*throughput_.tokens_per_second(), 100, 1);
}

TEST_F(ThroughputTest, AnInfiniteStepLeavesNoNonsense) {
  Step(10, absl::Seconds(1));
  Step(10, absl::Hours(1000));
  EXPECT_GT(*throughput_.tokens_per_second(), 0);
  EXPECT_LT(*throughput_.tokens_per_second(), 1);
}

TEST(RetryAfterTest, IsTheTimeOfTheTokensWithinBounds) {
  EXPECT_EQ(RetryAfter(500, 1000.0), absl::Milliseconds(500));
  EXPECT_EQ(RetryAfter(0, 1000.0), absl::Milliseconds(10));
  EXPECT_EQ(RetryAfter(1 << 30, 1.0), absl::Minutes(1));
  EXPECT_EQ(RetryAfter(500, std::nullopt), absl::Seconds(1));
  EXPECT_EQ(RetryAfter(500, 0.0), absl::Seconds(1));
}

}  // namespace
}  // namespace baton::worker
