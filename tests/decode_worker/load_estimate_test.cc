#include "decode_worker/load_estimate.h"

#include <gtest/gtest.h>

namespace baton::decode_worker {
namespace {

TEST(LoadEstimateTest, MeasuresOnlyWhileSomethingWaits) {
  LoadEstimate estimate;
  EXPECT_EQ(estimate.TimeToAdmit(100), std::nullopt);
  // Nothing waited: that the next came an hour later says nothing.
  estimate.OnQueueNonEmpty(absl::Seconds(0));
  estimate.OnAdmitted(100, /*more=*/false, absl::Seconds(1));
  estimate.OnQueueNonEmpty(absl::Hours(1));
  estimate.OnAdmitted(100, false, absl::Hours(1) + absl::Seconds(1));
  EXPECT_NEAR(absl::ToDoubleSeconds(*estimate.TimeToAdmit(1000)), 10, 1e-6);
}

TEST(LoadEstimateTest, WhoEntersAtOnceSaysNothing) {
  LoadEstimate estimate;
  estimate.OnAdmitted(1000, /*more=*/false, absl::Seconds(1));
  EXPECT_EQ(estimate.TimeToAdmit(100), std::nullopt);
  // Who waited has given up, and an hour later another comes and enters at once.
  estimate.OnQueueNonEmpty(absl::Seconds(2));
  estimate.OnQueueEmpty();
  estimate.OnAdmitted(100, false, absl::Hours(1));
  EXPECT_EQ(estimate.TimeToAdmit(100), std::nullopt);
}

TEST(LoadEstimateTest, FollowsAQueueThatSlowsDown) {
  LoadEstimate estimate;
  absl::Duration now = absl::Seconds(5);
  estimate.OnQueueNonEmpty(now);
  for (int i = 0; i < 50; ++i) estimate.OnAdmitted(100, true, now += absl::Seconds(1));
  for (int i = 0; i < 50; ++i) estimate.OnAdmitted(100, true, now += absl::Seconds(4));
  EXPECT_NEAR(absl::ToDoubleSeconds(*estimate.TimeToAdmit(100)), 4, 0.1);
}

TEST(LoadEstimateTest, CopiesWhereComputingTakesLonger) {
  LoadEstimate estimate;
  EXPECT_TRUE(estimate.CopyIsCheaper(1 << 30, 1));
  estimate.Prefilled(1000, absl::Seconds(1));
  estimate.Copied(1'000'000, absl::Seconds(1));
  EXPECT_TRUE(estimate.CopyIsCheaper(400'000, 1000));   // 0.8 s out and in against 1 s
  EXPECT_FALSE(estimate.CopyIsCheaper(600'000, 1000));  // 1.2 s
}

}  // namespace
}  // namespace baton::decode_worker
