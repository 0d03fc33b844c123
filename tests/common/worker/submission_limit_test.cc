#include "common/worker/submission_limit.h"

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace baton::worker {
namespace {

TEST(SubmissionLimitTest, WhatIsPostedAndWhatWaitsAreBoundedTogether) {
  SubmissionLimit limit("decode", {.requests = 3, .tokens = 100});
  EXPECT_TRUE(limit.Reserve(1000).ok()) << "a lone one, however long";
  EXPECT_EQ(ErrorReason(limit.Reserve(1)), "QUEUE_FULL") << "by tokens";
  limit.OnQueued(1000);
  EXPECT_EQ(ErrorReason(limit.Reserve(1)), "QUEUE_FULL") << "taken, and perhaps queued";
  limit.Update({.requests = 1, .tokens = 40}, std::nullopt);
  EXPECT_TRUE(limit.Reserve(10).ok());
  EXPECT_FALSE(limit.Reserve(51).ok());
  EXPECT_TRUE(limit.Reserve(50).ok());
  const absl::Status full = limit.Reserve(0);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorRetryAfter(full), absl::Seconds(1)) << "no rate is known";
  // Two are still posted.
  limit.Update({}, 200.0);
  EXPECT_TRUE(limit.Reserve(20).ok());
  EXPECT_EQ(ErrorRetryAfter(limit.Reserve(20)), absl::Milliseconds(100));
}

TEST(SubmissionLimitTest, ContinuationsFindAsMuchRoomAgainAndNewRequestsDoNot) {
  SubmissionLimit limit("decode", {.requests = 3, .tokens = 100});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.Reserve(10).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(ErrorReason(limit.Reserve(10)), "QUEUE_FULL");
    EXPECT_TRUE(limit.Reserve(10, /*continuation=*/true).ok());
  }
  EXPECT_EQ(ErrorReason(limit.Reserve(10, /*continuation=*/true)), "QUEUE_FULL") << "by requests";
  for (int i = 0; i < 6; ++i) limit.OnQueued(10);
  limit.Update({.requests = 1, .tokens = 190}, std::nullopt);
  EXPECT_EQ(ErrorReason(limit.Reserve(11, /*continuation=*/true)), "QUEUE_FULL") << "by tokens";
  EXPECT_TRUE(limit.Reserve(10, /*continuation=*/true).ok());
  EXPECT_EQ(ErrorReason(limit.Reserve(1)), "QUEUE_FULL");
}

TEST(SubmissionLimitTest, ADrainIsHeardAtOnce) {
  SubmissionLimit limit("prefill", {.requests = 3, .tokens = 100});
  limit.SetDraining(true);
  const absl::Status status = limit.Reserve(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "DRAINING");
}

}  // namespace
}  // namespace baton::worker
