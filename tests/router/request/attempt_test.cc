#include "router/request/attempt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
  attempt.route.prefill.worker = kPrefillProcess.worker;
  attempt.route.prefill.epoch = kPrefillProcess.epoch;
  attempt.route.decode.worker = kDecodeProcess.worker;
  attempt.route.decode.epoch = kDecodeProcess.epoch;
  return attempt;
}

RetryState After(const Attempt& attempt, absl::StatusCode code, const char* reason,
                 bool looks_dead = false) {
  const absl::Status error = MakeError(code, reason, "by the test");
  return attempt.PastAfter(error, BlameFor(error), looks_dead, kNow);
}

TEST(AttemptTest, ALostDecodeWorkerIsNotAskedAgainAndItsPrefillWorkerMayBe) {
  Attempt attempt = OnePair();
  RetryState past = After(attempt, absl::StatusCode::kUnavailable, "WORKER_LOST");
  EXPECT_EQ(past.losses, 1);
  EXPECT_TRUE(past.lost_worker);
  EXPECT_EQ(past.lost_at, kNow);
  EXPECT_EQ(past.reason, "WORKER_LOST");
  EXPECT_THAT(past.avoid, ElementsAre(kDecodeProcess));
  ASSERT_EQ(past.lost.size(), 1u);
  EXPECT_EQ(past.warm_prefill, kNoWorker) << "no token shows that it has computed the prompt";
  attempt.token_messages = 1;
  past = After(attempt, absl::StatusCode::kUnavailable, "WORKER_LOST");
  EXPECT_EQ(past.warm_prefill, kPrefillProcess.worker);
  EXPECT_TRUE(past.continued);
}

TEST(AttemptTest, APairThatFailsLosesNoWorkerUnlessOneLooksDead) {
  const Attempt attempt = OnePair();
  RetryState past = After(attempt, absl::StatusCode::kUnavailable, "PREFILL_LOST");
  EXPECT_FALSE(past.lost_worker);
  EXPECT_THAT(past.lost, IsEmpty());
  EXPECT_THAT(past.avoid, ElementsAre(kDecodeProcess, kPrefillProcess));
  past = After(attempt, absl::StatusCode::kUnavailable, "PREFILL_LOST", /*looks_dead=*/true);
  EXPECT_TRUE(past.lost_worker);
}

TEST(AttemptTest, RefusalsAndLossesCountApartUntilTokensCome) {
  Attempt attempt = OnePair();
  attempt.past = After(attempt, absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  EXPECT_EQ(attempt.past.refusals, 1);
  EXPECT_EQ(attempt.past.losses, 0);
  EXPECT_FALSE(attempt.past.lost_worker);
  attempt.past = After(attempt, absl::StatusCode::kUnavailable, "WORKER_LOST");
  EXPECT_EQ(attempt.past.refusals, 1);
  EXPECT_EQ(attempt.past.losses, 1);
  EXPECT_EQ(attempt.past.failed.size(), 2u);
  attempt.past.OnTokens();
  EXPECT_EQ(attempt.past.refusals, 0);
  EXPECT_EQ(attempt.past.losses, 0);
  EXPECT_THAT(attempt.past.avoid, IsEmpty());
  EXPECT_THAT(attempt.past.lost, IsEmpty());
  EXPECT_THAT(attempt.past.failed, IsEmpty());
  EXPECT_TRUE(attempt.past.lost_worker) << "it may wait for a worker from now on";
}

TEST(AttemptTest, TimingsOfAllAttemptsAddUp) {
  Attempt attempt = OnePair();
  internal::v1::DecodeResponse message;
  message.mutable_timings()->set_queue_ms(3);
  message.mutable_timings()->set_kv_transfer_ms(5);
  message.mutable_usage()->set_kv_bytes(100);
  message.mutable_usage()->set_cached_prompt_tokens(16);
  EXPECT_EQ(attempt.OnMessage(message, kNow), 100);
  message.mutable_usage()->set_kv_bytes(130);
  EXPECT_EQ(attempt.OnMessage(message, kNow), 30) << "usage is cumulative";
  EXPECT_EQ(attempt.cached_tokens, 16);
  Attempt second = OnePair();
  second.past = After(attempt, absl::StatusCode::kUnavailable, "WORKER_LOST");
  second.timings.set_queue_ms(4);
  const RetryState past = After(second, absl::StatusCode::kUnavailable, "WORKER_LOST");
  EXPECT_EQ(past.timings.queue_ms(), 7);
  EXPECT_EQ(past.timings.kv_transfer_ms(), 5);
}

TEST(AttemptTest, SilenceCountsFromTheFirstMessage) {
  Attempt attempt = OnePair();
  EXPECT_FALSE(attempt.Stalled(kNow, absl::Seconds(5)));
  attempt.OnMessage({}, kNow);
  EXPECT_FALSE(attempt.Stalled(kNow + absl::Seconds(5), absl::Seconds(5)));
  EXPECT_TRUE(attempt.Stalled(kNow + absl::Seconds(6), absl::Seconds(5)));
}

TEST(AttemptTest, OnlyWorkersWhoseDeathExplainsTheLossAreSuspects) {
  Attempt attempt = OnePair();
  EXPECT_EQ(attempt.Suspects(Blame::kDecodeWorker).size(), 1u);
  EXPECT_EQ(attempt.Suspects(Blame::kPair).size(), 2u);
  attempt.route.prefill = WorkerTarget();
  EXPECT_EQ(attempt.Suspects(Blame::kPair).size(), 1u);
}

}  // namespace
}  // namespace baton::router
