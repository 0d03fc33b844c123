#include "common/telemetry/buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

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

TEST(BucketsTest, CountsReachTheMaximum) {
  EXPECT_THAT(CountBuckets(1), ElementsAre(1));
  EXPECT_THAT(CountBuckets(3), ElementsAre(1, 2, 5));
  EXPECT_THAT(CountBuckets(50), ElementsAre(1, 2, 5, 10, 20, 50));
  EXPECT_EQ(CountBuckets(2147483647).back(), 5e9);
}

}  // namespace
}  // namespace baton::telemetry
