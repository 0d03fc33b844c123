#include "router/request/loss_record.h"

#include <gtest/gtest.h>

#include <set>

#include "common/base/error.h"
#include "router/request/retry_budget.h"

namespace baton::router {
namespace {

constexpr absl::Duration kLossAt = absl::Seconds(100);

struct FakeSigns final : WorkerSigns {
  std::set<int> dead, silent;
  bool LooksDead(const WorkerTarget& target) const override { return dead.contains(target.worker); }
  absl::Duration SilenceOf(int worker) const override {
    return kSuddenWithin + absl::Milliseconds(silent.contains(worker) ? 1 : 0);
  }
};

// The request ran there, unless the worker had it in its queue for a minute.
StreamEnd LossOn(int worker, bool ran, const char* reason = "WORKER_LOST",
                 int computes = kNoWorker) {
  Route route;
  route.answers.worker = worker;
  route.computes.worker = computes == kNoWorker ? worker : computes;
  return {MakeError(absl::StatusCode::kUnavailable, reason, "by the test"), route, /*heard=*/ran,
          kLossAt - absl::Minutes(1), kLossAt};
}

TEST(LossRecordTest, ALossOfADeadWorkerIsNotHeldAgainstTheRequest) {
  LossRecord record;
  FakeSigns signs;
  for (int worker = 0; worker < 20; ++worker) {
    signs.dead.insert(worker);
    record.Add(LossOn(worker, /*ran=*/false), signs);  // it waited in the queue there
    signs.silent.insert(worker);                       // the worker froze
    record.Add(LossOn(worker, /*ran=*/true), signs);
    record.Settle(signs, kLossAt);
  }
  EXPECT_EQ(record.unproven(), 0);
  EXPECT_EQ(record.deaths(), 0);
  EXPECT_FALSE(record.unclear());
  EXPECT_TRUE(record.Verdict(signs, kLossAt).ok());
}

TEST(LossRecordTest, TheDeathMayBecomeKnownLaterButNotMuchLater) {
  LossRecord record;
  FakeSigns signs;
  record.Add(LossOn(1, /*ran=*/true), signs);
  record.Add(LossOn(2, /*ran=*/true), signs);
  record.Settle(signs, kLossAt);
  EXPECT_EQ(record.unproven(), 2);
  signs.dead = {1};
  record.Settle(signs, kLossAt + kProofWithin);
  EXPECT_EQ(record.unproven(), 1);
  EXPECT_EQ(record.deaths(), 1);
  signs.dead = {2};
  record.Settle(signs, kLossAt + kProofWithin + absl::Milliseconds(1));
  EXPECT_EQ(record.unproven(), 1) << "that is another matter";
  signs.dead.clear();
  record.Settle(signs, kLossAt);
  EXPECT_EQ(record.deaths(), 1) << "what was proven stays so, though the worker is back";
}

TEST(LossRecordTest, OfTwoSuspectsTheDeadOneCounts) {
  LossRecord record;
  FakeSigns signs;
  signs.silent = {2};  // it froze
  record.Add(LossOn(1, /*ran=*/true, "PREFILL_LOST", /*computes=*/2), signs);
  signs.dead = {2};
  record.Settle(signs, kLossAt);
  EXPECT_EQ(record.unproven(), 0);
  EXPECT_EQ(record.deaths(), 0);
}

TEST(LossRecordTest, ATokenStartsTheCountAnew) {
  LossRecord record;
  FakeSigns signs;
  signs.dead = {1};
  record.Add(LossOn(1, /*ran=*/true), signs);
  record.Add(LossOn(2, /*ran=*/true), signs);
  record.Settle(signs, kLossAt);
  record.Clear();
  EXPECT_EQ(record.deaths() + record.unproven(), 0);
}

TEST(LossRecordTest, ThreeLossesOfWorkersThatLiveAreTheLastOnesError) {
  LossRecord record;
  const FakeSigns signs;
  for (const char* reason : {"FIRST", "SECOND", "THIRD"}) {
    EXPECT_TRUE(record.Verdict(signs, kLossAt).ok()) << reason;
    record.Add(LossOn(1, /*ran=*/false, reason), signs);
  }
  EXPECT_FALSE(record.unclear());
  EXPECT_EQ(ErrorReason(record.Verdict(signs, kLossAt)), "THIRD");
}

TEST(LossRecordTest, WhatThreeDeathsWouldDecideIsDecidedHalfASecondLater) {
  FakeSigns signs;
  LossRecord record;
  for (const int worker : {1, 2, 3}) {
    EXPECT_FALSE(record.unclear());
    record.Add(LossOn(worker, /*ran=*/true), signs);
  }
  EXPECT_TRUE(record.unclear());
  const absl::Duration decided = kLossAt + kSameWorkerPause;
  EXPECT_TRUE(record.Verdict(signs, decided - absl::Milliseconds(1)).ok());
  LossRecord living = record;
  EXPECT_EQ(ErrorReason(living.Verdict(signs, decided)), "WORKER_LOST");
  LossRecord killing = record;
  signs.dead = {1, 2, 3};
  EXPECT_EQ(ErrorReason(killing.Verdict(signs, kLossAt)), "WORKERS_DIED");
  signs.dead = {1};
  EXPECT_TRUE(record.Verdict(signs, decided).ok()) << "one worker's fault, and two losses";
}

TEST(LossRecordTest, ADeathCountsIfTheRequestRanThereAndTheWorkerWasHeardOf) {
  FakeSigns signs;
  signs.dead = {1};
  const auto deaths = [&signs](StreamEnd end, absl::Duration sent_ago = absl::Minutes(1)) {
    end.sent_at = kLossAt - sent_ago;
    LossRecord record;
    record.Add(end, signs);
    record.Settle(signs, kLossAt);
    return record.deaths();
  };
  EXPECT_EQ(deaths(LossOn(1, /*ran=*/true)), 1);
  EXPECT_EQ(deaths(LossOn(1, /*ran=*/true, "WORKER_STALLED")), 0) << "it fell silent";
  EXPECT_EQ(deaths(LossOn(1, /*ran=*/true, "STALE_EPOCH")), 0) << "it met another process";
  EXPECT_EQ(deaths(LossOn(1, /*ran=*/false), kAnswerTime), 1) << "it had just come";
  EXPECT_EQ(deaths(LossOn(1, /*ran=*/false), kAnswerTime + absl::Milliseconds(1)), 0);
  signs.silent = {1};
  EXPECT_EQ(deaths(LossOn(1, /*ran=*/true)), 0) << "it froze before";
}

TEST(LossRecordTest, RefusalsAndDrainsAreNoLosses) {
  LossRecord record;
  record.Add(LossOn(1, /*ran=*/true, "DRAINING"), FakeSigns());
  StreamEnd refusal = LossOn(1, /*ran=*/true);
  refusal.error = MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL", "");
  record.Add(refusal, FakeSigns());
  EXPECT_EQ(record.unproven(), 0);
}

TEST(LossRecordTest, ARequestThatEndsWorkersIsNotToBeTriedAgain) {
  EXPECT_EQ(WorkersDied().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrorReason(WorkersDied()), "WORKERS_DIED");
  EXPECT_FALSE(ErrorRetryAfter(WorkersDied()).has_value());
}

}  // namespace
}  // namespace baton::router
