#include "common/worker/intake.h"

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace baton::worker {
namespace {

TEST(IntakeTest, WhatIsPostedAndWhatWaitsAreBoundedTogether) {
  Intake intake("decode", {.requests = 3, .tokens = 100});
  EXPECT_TRUE(intake.Enter(1000).ok()) << "a lone one, however long";
  EXPECT_EQ(ErrorReason(intake.Enter(1)), "QUEUE_FULL") << "by tokens";
  intake.Taken(1000);
  EXPECT_EQ(ErrorReason(intake.Enter(1)), "QUEUE_FULL") << "taken, and perhaps queued";
  intake.Settle({.requests = 1, .tokens = 40}, std::nullopt);
  EXPECT_TRUE(intake.Enter(10).ok());
  EXPECT_FALSE(intake.Enter(51).ok());
  EXPECT_TRUE(intake.Enter(50).ok());
  const absl::Status full = intake.Enter(0);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorRetryAfter(full), absl::Seconds(1)) << "no rate is known";
  // Two are still posted.
  intake.Settle({}, 200.0);
  EXPECT_TRUE(intake.Enter(20).ok());
  EXPECT_EQ(ErrorRetryAfter(intake.Enter(20)), absl::Milliseconds(100));
}

TEST(IntakeTest, ContinuationsFindAsMuchRoomAgainAndNewRequestsDoNot) {
  Intake intake("decode", {.requests = 3, .tokens = 100});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(intake.Enter(10).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ErrorReason(intake.Enter(10)), "QUEUE_FULL");
    EXPECT_TRUE(intake.Enter(10, /*continuation=*/true).ok());
  }
  EXPECT_EQ(ErrorReason(intake.Enter(10, /*continuation=*/true)), "QUEUE_FULL") << "by requests";
  for (int i = 0; i < 6; ++i) intake.Taken(10);
  intake.Settle({.requests = 1, .tokens = 190}, std::nullopt);
  EXPECT_EQ(ErrorReason(intake.Enter(11, /*continuation=*/true)), "QUEUE_FULL") << "by tokens";
  EXPECT_TRUE(intake.Enter(10, /*continuation=*/true).ok());
  EXPECT_EQ(ErrorReason(intake.Enter(1)), "QUEUE_FULL");
}

TEST(IntakeTest, ADrainIsHeardAtOnce) {
  Intake intake("prefill", {.requests = 3, .tokens = 100});
  intake.Drain();
  const absl::Status status = intake.Enter(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "DRAINING");
}

}  // namespace
}  // namespace baton::worker
