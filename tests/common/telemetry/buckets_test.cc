#include "common/telemetry/buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/histogram.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "tests/testing/histogram_quantile.h"
#include "tests/testing/seed.h"

namespace baton::telemetry {
namespace {

using ::testing::ElementsAre;

TEST(BucketsTest, BoundsRise) {
  const std::vector<std::vector<double>> lists = {
      Buckets(kFirstTokenSecondsBuckets), Buckets(kTokenSecondsBuckets),
      Buckets(kRequestSecondsBuckets),    Buckets(kTransferSecondsBuckets),
      Buckets(kTransferBytesBuckets),     CountBuckets(131072)};
  for (const std::vector<double>& bounds : lists) {
    EXPECT_TRUE(std::adjacent_find(bounds.begin(), bounds.end(), std::greater_equal<>()) ==
                bounds.end())
        << ::testing::PrintToString(bounds);
    EXPECT_GT(bounds.front(), 0);
  }
}

TEST(BucketsTest, TransferBytesAreFourfoldSteps) {
  const std::vector<double> bounds = Buckets(kTransferBytesBuckets);
  ASSERT_EQ(bounds.size(), 12u);
  for (size_t i = 0; i < bounds.size(); ++i) {
    EXPECT_EQ(bounds[i], static_cast<double>(int64_t{1} << (11 + 2 * i)));
  }
}

// So a quantile is read with at most this error: the true one is in the same bucket.
TEST(BucketsTest, SecondsRiseByAtMostThreefold) {
  for (const std::vector<double>& bounds :
       {Buckets(kFirstTokenSecondsBuckets), Buckets(kTokenSecondsBuckets),
        Buckets(kRequestSecondsBuckets), Buckets(kTransferSecondsBuckets)}) {
    for (size_t i = 1; i < bounds.size(); ++i) EXPECT_LE(bounds[i], 3 * bounds[i - 1]);
  }
}

// Draws from a distribution whose scale and shape are random, too.
std::vector<double> RandomValues(std::mt19937_64& random, double lowest, double highest) {
  const double scale =
      std::exp(std::uniform_real_distribution<double>(std::log(lowest), std::log(highest))(random));
  const int shape = static_cast<int>(random() % 5);
  const int count = 1 + static_cast<int>(random() % 2000);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    switch (shape) {
      case 0:
        values.push_back(scale);
        break;
      case 1:
        values.push_back(std::uniform_real_distribution<double>(0, scale)(random));
        break;
      case 2:
        values.push_back(std::exponential_distribution<double>(1 / scale)(random));
        break;
      case 3:
        values.push_back(std::lognormal_distribution<double>(std::log(scale), 1)(random));
        break;
      default:  // most are quick, some wait
        values.push_back(random() % 50 == 0 ? 20 * scale : scale);
    }
  }
  return values;
}

TEST(BucketsTest, QuantilesReadFromAHistogramAreWithinOneBucketOfTheTrueOnes) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const std::vector<std::vector<double>> lists = {
      Buckets(kFirstTokenSecondsBuckets), Buckets(kTokenSecondsBuckets),
      Buckets(kRequestSecondsBuckets),    Buckets(kTransferSecondsBuckets),
      Buckets(kTransferBytesBuckets),     CountBuckets(131072)};
  for (int round = 0; round < 300; ++round) {
    const std::vector<double>& bounds = lists[random() % lists.size()];
    const std::vector<double> values = RandomValues(random, bounds.front() / 2, bounds.back() * 2);
    prometheus::Histogram histogram(bounds);
    for (double value : values) histogram.Observe(value);
    std::vector<double> counts;
    for (const auto& bucket : histogram.Collect().histogram.bucket) {
      counts.push_back(static_cast<double>(bucket.cumulative_count));
    }
    for (const double quantile : {0.5, 0.9, 0.99}) {
      const double exact = testing::ExactQuantile(quantile, values);
      const double read = testing::HistogramQuantile(quantile, bounds, counts);
      EXPECT_LE(std::abs(testing::BucketOf(read, bounds) - testing::BucketOf(exact, bounds)), 1)
          << quantile << ": " << read << " read, " << exact << " true, of " << values.size();
    }
  }
}

TEST(BucketsTest, CountsReachTheMaximum) {
  EXPECT_THAT(CountBuckets(1), ElementsAre(1));
  EXPECT_THAT(CountBuckets(3), ElementsAre(1, 2, 5));
  EXPECT_THAT(CountBuckets(50), ElementsAre(1, 2, 5, 10, 20, 50));
  EXPECT_EQ(CountBuckets(2147483647).back(), 5e9);
}

}  // namespace
}  // namespace baton::telemetry
