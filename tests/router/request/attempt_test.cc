#include "router/request/attempt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "common/base/error.h"
#include "router/request/worker_error.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Incarnation kPrefillProcess = {0, 10}, kDecodeProcess = {2, 12};
constexpr absl::Duration kNow = absl::Seconds(100);

Attempt OnePair() {
  Attempt attempt;
  attempt.route.computes.worker = kPrefillProcess.worker;
  attempt.route.computes.epoch = kPrefillProcess.epoch;
  attempt.route.answers.worker = kDecodeProcess.worker;
  attempt.route.answers.epoch = kDecodeProcess.epoch;
  attempt.sent_at_awake = kNow;
  return attempt;
}

struct AllAlike final : WorkerSigns {
  bool dead = false;
  absl::Duration silence;
  bool LooksDead(const WorkerTarget&) const override { return dead; }
  absl::Duration SilenceOf(int) const override { return silence; }
};

RetryState After(const Attempt& attempt, absl::StatusCode code, const char* reason,
                 bool looks_dead = false, absl::Duration silence = absl::ZeroDuration()) {
  AllAlike signs;
  signs.dead = looks_dead;
  signs.silence = silence;
  const StreamEnd end = attempt.EndWith(MakeError(code, reason, "by the test"), kNow);
  return attempt.PastAfter(end, /*sequences=*/1, signs);
}

TEST(AttemptTest, ALostDecodeWorkerIsNotAskedAgainAndItsPrefillWorkerMayBe) {
  Attempt attempt = OnePair();
  RetryState past = After(attempt, absl::StatusCode::kUnavailable, "WORKER_LOST");
  EXPECT_EQ(past.losses.unproven(), 1);
  EXPECT_TRUE(past.retries.MayWait());
  EXPECT_EQ(past.retries.lost_at(), kNow);
  EXPECT_EQ(ErrorReason(past.retries.error()), "WORKER_LOST");
  EXPECT_THAT(past.retries.avoided(), ElementsAre(kDecodeProcess));
  ASSERT_EQ(past.lost.size(), 1u);
  EXPECT_EQ(past.warm_worker, kNoWorker) << "no token shows that it has computed the prompt";
  attempt.token_messages = 1;
  past = After(attempt, absl::StatusCode::kUnavailable, "WORKER_LOST");
  EXPECT_EQ(past.warm_worker, kPrefillProcess.worker);
  EXPECT_TRUE(past.continued);
}

TEST(AttemptTest, APairThatFailsLosesNoWorkerUnlessOneLooksDead) {
  const Attempt attempt = OnePair();
  RetryState past = After(attempt, absl::StatusCode::kUnavailable, "PREFILL_LOST");
  EXPECT_FALSE(past.retries.MayWait());
  EXPECT_THAT(past.lost, IsEmpty());
  EXPECT_THAT(past.retries.avoided(), ElementsAre(kDecodeProcess, kPrefillProcess));
  past = After(attempt, absl::StatusCode::kUnavailable, "PREFILL_LOST", /*looks_dead=*/true);
  EXPECT_TRUE(past.retries.MayWait());
}

TEST(AttemptTest, TokensForgetWhatFailedBefore) {
  Attempt attempt = OnePair();
  attempt.past = After(attempt, absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  EXPECT_EQ(attempt.past.losses.unproven(), 0);
  attempt.past = After(attempt, absl::StatusCode::kUnavailable, "WORKER_LOST");
  EXPECT_TRUE(attempt.past.retries.refused());
  EXPECT_EQ(attempt.past.losses.unproven(), 1);
  EXPECT_EQ(attempt.past.failed.size(), 2u);
  attempt.past.OnTokens();
  EXPECT_FALSE(attempt.past.retries.refused());
  EXPECT_EQ(attempt.past.losses.unproven(), 0);
  EXPECT_THAT(attempt.past.retries.avoided(), IsEmpty());
  EXPECT_THAT(attempt.past.lost, IsEmpty());
  EXPECT_THAT(attempt.past.failed, IsEmpty());
  EXPECT_TRUE(attempt.past.retries.MayWait()) << "it may wait for a worker from now on";
}

// A request that ends the process that runs it must not end one after the other.
TEST(AttemptTest, ADeathCountsIfTheRequestRanThereWhenTheProcessEnded) {
  constexpr auto kLost = absl::StatusCode::kUnavailable;
  const auto deaths = [](const RetryState& past) { return past.losses.deaths(); };
  Attempt attempt = OnePair();
  attempt.sent_at_awake = kNow - absl::Minutes(1);
  EXPECT_EQ(deaths(After(attempt, kLost, "WORKER_LOST", true)), 0) << "it waited in the queue";
  attempt.sent_at_awake = kNow - absl::Milliseconds(10);
  EXPECT_EQ(deaths(After(attempt, kLost, "WORKER_LOST", true)), 1) << "it had just come";
  EXPECT_EQ(deaths(After(attempt, kLost, "STALE_EPOCH", true)), 0) << "it met the next process";
  for (const char* reason : {"WORKER_SUSPECT", "WORKER_STALLED", "WORKER_EXPIRED"}) {
    EXPECT_EQ(deaths(After(attempt, kLost, reason, true)), 0) << "it fell silent: " << reason;
  }
  attempt.sent_at_awake = kNow - absl::Minutes(1);
  v1::Usage usage;
  attempt.OnMessage({}, kNow - absl::Minutes(1), &usage);
  EXPECT_EQ(deaths(After(attempt, kLost, "WORKER_LOST", true)), 1);
  EXPECT_EQ(deaths(After(attempt, kLost, "WORKER_LOST", true, absl::Seconds(5))), 0)
      << "the worker froze, and its connection was closed later";
  EXPECT_EQ(deaths(After(attempt, kLost, "WORKER_EXPIRED", true, absl::Seconds(6))), 0);
  EXPECT_EQ(deaths(After(attempt, kLost, "WORKER_LOST", false)), 0);
}

TEST(AttemptTest, TimingsOfAllAttemptsAddUp) {
  Attempt attempt = OnePair();
  internal::v1::DecodeResponse message;
  message.mutable_timings()->set_queue_ms(3);
  message.mutable_timings()->set_kv_transfer_ms(5);
  message.mutable_usage()->set_kv_bytes(100);
  message.mutable_usage()->set_cached_prompt_tokens(16);
  v1::Usage usage;
  attempt.OnMessage(message, kNow, &usage);
  EXPECT_EQ(attempt.cached_tokens, 16);
  Attempt second = OnePair();
  second.past = After(attempt, absl::StatusCode::kUnavailable, "WORKER_LOST");
  second.timings.set_queue_ms(4);
  const RetryState past = After(second, absl::StatusCode::kUnavailable, "WORKER_LOST");
  EXPECT_EQ(past.timings.queue_ms(), 7);
  EXPECT_EQ(past.timings.kv_transfer_ms(), 5);
}

// A worker reports what it has done so far; an attempt before this one has done some of the sum.
TEST(AttemptTest, WhatWorkersReportAddsUp) {
  Attempt attempt = OnePair();
  v1::Usage sum;
  sum.set_kv_bytes(7);
  sum.set_draft_tokens(20);
  sum.set_accepted_draft_tokens(11);
  internal::v1::DecodeResponse message;
  message.mutable_usage()->set_kv_bytes(100);
  attempt.OnMessage(message, kNow, &sum);
  EXPECT_EQ(sum.kv_bytes(), 107);
  EXPECT_EQ(sum.draft_tokens(), 20);
  message.mutable_usage()->set_kv_bytes(130);
  message.mutable_usage()->set_draft_tokens(8);
  message.mutable_usage()->set_accepted_draft_tokens(3);
  attempt.OnMessage(message, kNow, &sum);
  attempt.OnMessage({}, kNow, &sum);
  message.mutable_usage()->set_draft_tokens(16);
  message.mutable_usage()->set_accepted_draft_tokens(4);
  attempt.OnMessage(message, kNow, &sum);
  EXPECT_EQ(sum.kv_bytes(), 137);
  EXPECT_EQ(sum.draft_tokens(), 36);
  EXPECT_EQ(sum.accepted_draft_tokens(), 15);
}

// Of several choices, a message may come behind one with later counts.
TEST(AttemptTest, WhatWorkersReportNeverGoesBack) {
  Attempt attempt = OnePair();
  v1::Usage sum;
  const auto report = [&](int64_t kv_bytes, int32_t drafted, int32_t accepted) {
    internal::v1::DecodeResponse message;
    message.mutable_usage()->set_kv_bytes(kv_bytes);
    message.mutable_usage()->set_draft_tokens(drafted);
    message.mutable_usage()->set_accepted_draft_tokens(accepted);
    attempt.OnMessage(message, kNow, &sum);
    return std::vector<int64_t>{sum.kv_bytes(), sum.draft_tokens(), sum.accepted_draft_tokens()};
  };
  EXPECT_THAT(report(130, 16, 4), ElementsAre(130, 16, 4));
  EXPECT_THAT(report(100, 8, 3), ElementsAre(130, 16, 4));
  EXPECT_THAT(report(131, 17, 5), ElementsAre(131, 17, 5));
}

TEST(AttemptTest, CountsBeyondWhatAMessageHoldsSaturate) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
  Attempt attempt = OnePair();
  v1::Usage sum;
  sum.set_draft_tokens(kMost - 1);
  sum.set_accepted_draft_tokens(kMost - 1);
  internal::v1::DecodeResponse message;
  message.mutable_usage()->set_draft_tokens(kMost);
  message.mutable_usage()->set_accepted_draft_tokens(2);
  attempt.OnMessage(message, kNow, &sum);
  EXPECT_EQ(sum.draft_tokens(), kMost);
  EXPECT_EQ(sum.accepted_draft_tokens(), kMost);
}

TEST(AttemptTest, SilenceCountsFromTheFirstMessage) {
  Attempt attempt = OnePair();
  EXPECT_FALSE(attempt.Stalled(kNow, absl::Seconds(5)));
  v1::Usage usage;
  attempt.OnMessage({}, kNow, &usage);
  EXPECT_FALSE(attempt.Stalled(kNow + absl::Seconds(5), absl::Seconds(5)));
  EXPECT_TRUE(attempt.Stalled(kNow + absl::Seconds(6), absl::Seconds(5)));
}

TEST(AttemptTest, OnlyWorkersWhoseDeathExplainsTheLossAreSuspects) {
  Attempt attempt = OnePair();
  const auto suspects = [&attempt](const char* reason) {
    return attempt.EndWith(MakeError(absl::StatusCode::kUnavailable, reason, ""), kNow)
        .suspects.size();
  };
  EXPECT_EQ(suspects("WORKER_LOST"), 1u);
  EXPECT_EQ(suspects("PREFILL_LOST"), 2u);
  attempt.route.computes = attempt.route.answers;
  EXPECT_EQ(suspects("PREFILL_LOST"), 1u);
}

}  // namespace
}  // namespace baton::router
