#include "cli/bench/arrivals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/random.h"
#include "tests/testing/seed.h"

namespace baton::cli {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Moments {
  double mean = 0, std = 0;
};
Moments MomentsOf(const std::vector<double>& values) {
  Moments m;
  for (const double value : values) m.mean += value / static_cast<double>(values.size());
  for (const double value : values) {
    m.std += (value - m.mean) * (value - m.mean) / static_cast<double>(values.size());
  }
  m.std = std::sqrt(m.std);
  return m;
}

// For random rates and shapes: the rate is exact, and gaps vary as much as a gamma distribution's.
TEST(ArrivalTimesTest, HaveTheRateAndTheBurstiness) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  constexpr int kCount = 40'000;
  for (int round = 0; round < 12; ++round) {
    const double rate = std::exp(12 * random.Uniform() - 6);
    const double burstiness = std::exp(4 * random.Uniform() - 1.5);
    SCOPED_TRACE(::testing::Message() << "rate " << rate << ", burstiness " << burstiness);
    const std::vector<double> times = ArrivalTimes(kCount, rate, burstiness, random.Next());
    ASSERT_TRUE(std::is_sorted(times.begin(), times.end()));
    EXPECT_NEAR(times.back() * rate / kCount, 1, 1e-9);
    std::vector<double> gaps = {times[0]};
    for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
    const Moments m = MomentsOf(gaps);
    const double expected = 1 / std::sqrt(burstiness);
    // The fourth moment of burstier gaps is larger: about six standard errors at the worst shape.
    EXPECT_NEAR(m.std / m.mean / expected, 1, 0.06);
  }
}

TEST(ArrivalTimesTest, OfExtremeArguments) {
  EXPECT_THAT(ArrivalTimes(3, kInfinity, 1, 0), ::testing::Each(0));
  EXPECT_THAT(ArrivalTimes(0, 2, 1, 0), ::testing::IsEmpty());
  EXPECT_THAT(ArrivalTimes(4, 2, kInfinity, 0),
              ::testing::Pointwise(::testing::DoubleEq(), {0.5, 1.0, 1.5, 2.0}));
  EXPECT_EQ(ArrivalTimes(9, 2, 0.5, 7), ArrivalTimes(9, 2, 0.5, 7));
  EXPECT_NE(ArrivalTimes(9, 2, 0.5, 7), ArrivalTimes(9, 2, 0.5, 8));
  for (const double time : ArrivalTimes(100, 1, 1e-12, 1)) EXPECT_TRUE(std::isfinite(time));
}

TEST(RandomTest, NormalAndGammaHaveTheirMoments) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  constexpr int kDraws = 100'000;
  std::vector<double> values(kDraws);
  for (double& value : values) value = random.Normal();
  EXPECT_NEAR(MomentsOf(values).mean, 0, 0.025);
  EXPECT_NEAR(MomentsOf(values).std, 1, 0.02);
  for (const double shape : {0.3, 1.0, 7.5}) {
    for (double& value : values) value = random.Gamma(shape);
    const Moments m = MomentsOf(values);
    EXPECT_NEAR(m.mean / shape, 1, 0.05) << shape;
    EXPECT_NEAR(m.std / std::sqrt(shape), 1, 0.06) << shape;
  }
}

TEST(RandomTest, ShuffleKeepsEveryValue) {
  std::vector<int> values(100);
  for (int i = 0; i < 100; ++i) values[i] = i;
  const std::vector<int> sorted = values;
  Random(3).Shuffle(&values);
  EXPECT_NE(values, sorted);
  EXPECT_THAT(values, ::testing::UnorderedElementsAreArray(sorted));
}

}  // namespace
}  // namespace baton::cli
