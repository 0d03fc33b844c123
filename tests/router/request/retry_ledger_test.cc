#include "router/request/retry_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "router/request/worker_error.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kStart = absl::Seconds(100);
constexpr absl::Duration kWait = absl::Seconds(5);
constexpr absl::Duration kMoment = absl::Milliseconds(1);

struct DeadWorkers final : WorkerSigns {
  std::set<int> dead;
  bool LooksDead(const WorkerTarget& target) const override { return dead.contains(target.worker); }
  absl::Duration SilenceOf(int) const override { return absl::ZeroDuration(); }
};

absl::Status Refusal(const char* reason = "QUEUE_FULL") {
  return MakeError(absl::StatusCode::kResourceExhausted, reason, "by the test");
}
absl::Status Unavailable(const char* reason) {
  return MakeError(absl::StatusCode::kUnavailable, reason, "by the test");
}

class RetryLedgerTest : public ::testing::Test {
 protected:
  // A stream to these workers is sent and ends now.
  StreamEnd End(const absl::Status& error, int worker = 1, int computes = kNoWorker) const {
    Route route;
    route.answers.worker = worker;
    route.computes.worker = computes == kNoWorker ? worker : computes;
    return {error, route, /*heard=*/true, /*sent_at=*/now_, /*at=*/now_};
  }
  void Lose(const absl::Status& error, int worker = 1, int computes = kNoWorker) {
    ledger_.OnEnd(End(error, worker, computes), /*sequences=*/1, /*unclear=*/false, signs_);
  }
  // How long the next try waits.
  absl::Duration Pause() const {
    absl::Duration pause;
    while (!ledger_.Due(now_ + pause)) pause += kMoment;
    return pause;
  }
  bool Pay() {
    RetryLedger::Pay({&ledger_}, /*any_ready=*/true, context_, now_);
    return ledger_.MayOpen(now_);
  }
  std::string Over(absl::Duration later = absl::ZeroDuration()) const {
    return ErrorReason(ledger_.Over(context_, now_ + later));
  }
  void ExpectMetric(const std::string& name, int value) const {
    EXPECT_THAT(prometheus::TextSerializer().Serialize(registry_.Collect()),
                HasSubstr(absl::StrCat("\n", name, "{model=\"model\",role=\"router\"} ", value)));
  }

  absl::Duration now_ = kStart;
  DeadWorkers signs_;
  RetryBudget budget_{{.share = 0, .reserve = 3, .capacity = 100}};
  prometheus::Registry registry_;
  RouterMetrics metrics_{&registry_, "model"};
  RetryContext context_{budget_, metrics_, signs_, kWait};
  RetryLedger ledger_;
};

TEST_F(RetryLedgerTest, ANewRequestPaysForOneRefusalAndTheSecondEndsIt) {
  Lose(Refusal());
  EXPECT_FALSE(ledger_.MayWait());
  EXPECT_EQ(Pause(), absl::ZeroDuration());
  EXPECT_TRUE(Pay());
  EXPECT_EQ(budget_.level(), 2);
  ledger_.OnOpened(context_, now_);
  EXPECT_EQ(budget_.OnDeath({1, 0}, now_), 0) << "no death explains a refusal";
  EXPECT_EQ(Over(), "");
  Lose(Refusal(), 2);
  EXPECT_EQ(Over(), "QUEUE_FULL");
}

TEST_F(RetryLedgerTest, ANewRequestThatIsRefusedDoesNotWaitForTheBudget) {
  ASSERT_TRUE(budget_.TryTake(3));
  Lose(Refusal());
  EXPECT_FALSE(Pay());
  EXPECT_EQ(Over(), "QUEUE_FULL");
  ExpectMetric("baton_retry_budget_exhausted_total", 1);
}

TEST_F(RetryLedgerTest, ARequestThatHasBegunWaitsForRoomWithPausesThatGrow) {
  ledger_.OnProgress();
  for (const int pause_ms : {0, 400, 800, 1600, 1600}) {
    Lose(Refusal());
    EXPECT_EQ(Pause(), absl::Milliseconds(pause_ms));
    EXPECT_TRUE(ledger_.MayOpen(now_ + Pause())) << "it is free";
    EXPECT_EQ(Over(), "");
    now_ += absl::Milliseconds(pause_ms);
  }
  ledger_.OnProgress();
  Lose(Refusal());
  EXPECT_EQ(Pause(), absl::ZeroDuration());
  ledger_.OnNotOpened(context_, now_);
  EXPECT_EQ(Pause(), absl::Milliseconds(200)) << "there was no other worker";
}

TEST_F(RetryLedgerTest, EndsOfStreamsThatWereOpenTogetherCountOnce) {
  StreamEnd second = End(Refusal());
  StreamEnd retry = second;
  now_ += absl::Seconds(1);
  Lose(Refusal());
  second.at = now_;
  ledger_.OnEnd(second, 1, false, signs_);
  EXPECT_EQ(Over(), "") << "no worker has refused what was refused before";
  EXPECT_EQ(Pause(), absl::ZeroDuration());
  retry.sent_at = retry.at = now_;
  ledger_.OnEnd(retry, 1, false, signs_);
  EXPECT_EQ(Over(), "QUEUE_FULL");
}

TEST_F(RetryLedgerTest, DrainsAreFreeAndWaitFromTheSecondOn) {
  Lose(Unavailable("DRAINING"));
  EXPECT_TRUE(ledger_.MayOpen(now_));
  EXPECT_TRUE(ledger_.MayWait());
  Lose(Unavailable("DRAINING"));
  EXPECT_EQ(Pause(), absl::Milliseconds(200));
  EXPECT_TRUE(ledger_.MayOpen(now_ + Pause()));
}

TEST_F(RetryLedgerTest, ALossIsPaidForUnlessASuspectLooksDead) {
  Lose(Unavailable("PREFILL_LOST"), 1, 2);
  EXPECT_FALSE(ledger_.MayOpen(now_));
  EXPECT_TRUE(Pay());
  EXPECT_EQ(budget_.level(), 2);
  ledger_.OnNotOpened(context_, now_);
  EXPECT_EQ(budget_.level(), 3) << "what waits takes nothing";
  EXPECT_FALSE(ledger_.MayOpen(now_));
  RetryLedger::Pay({&ledger_}, /*any_ready=*/false, context_, now_);
  EXPECT_EQ(budget_.level(), 3);
  EXPECT_EQ(Over(kWait), "") << "it does not wait for the budget";
  signs_.dead = {2};
  EXPECT_TRUE(Pay());
  EXPECT_EQ(budget_.level(), 3);
  ExpectMetric("baton_dead_worker_sequences_total", 1);
}

TEST_F(RetryLedgerTest, AChargeIsGivenBackWhenASuspectProvesDead) {
  for (const bool before_it_is_recorded : {false, true}) {
    signs_.dead.clear();
    Lose(Unavailable("PREFILL_LOST"), 1, 2);
    ASSERT_TRUE(Pay());
    EXPECT_EQ(budget_.level(), 2);
    if (before_it_is_recorded) signs_.dead = {2};
    ledger_.OnOpened(context_, now_);
    EXPECT_EQ(budget_.OnDeath({2, 0}, now_), before_it_is_recorded ? 0 : 1);
    EXPECT_EQ(budget_.level(), 3);
  }
}

TEST_F(RetryLedgerTest, SeveralPayAllOrNothing) {
  RetryLedger other;
  for (RetryLedger* ledger : {&ledger_, &other}) {
    ledger->OnEnd(End(Unavailable("WORKER_LOST")), /*sequences=*/2, false, signs_);
  }
  RetryLedger::Pay({&ledger_, &other}, /*any_ready=*/true, context_, now_);
  EXPECT_EQ(budget_.level(), 3);
  EXPECT_FALSE(ledger_.MayOpen(now_));
  EXPECT_EQ(Over(kWait - kMoment), "");
  EXPECT_EQ(Over(kWait), "RETRY_BUDGET_EXHAUSTED");
  EXPECT_TRUE(ErrorRetryAfter(ledger_.Over(context_, now_ + kWait)).has_value());
  signs_.dead = {1};
  EXPECT_TRUE(Pay());
  EXPECT_EQ(Over(kWait), "") << "it owes nothing any more";
  signs_.dead.clear();
  RetryLedger::Pay({&ledger_, &other}, /*any_ready=*/true, context_, now_);
  EXPECT_TRUE(other.MayOpen(now_));
  EXPECT_EQ(budget_.level(), 1);
}

TEST_F(RetryLedgerTest, TheWaitForAWorkerHasABoundAndStartsAnewWithEachWorker) {
  ledger_.OnNoWorker(now_, Unavailable("NO_WORKER"));
  now_ += kWait - kMoment;
  ledger_.OnNoWorker(now_, Unavailable("NO_WORKER"));
  EXPECT_EQ(Over(), "");
  EXPECT_EQ(Over(kMoment), "NO_WORKER") << "no worker was asked";
  ledger_.OnWorkerReady();
  Lose(Unavailable("WORKER_STALLED"));
  ledger_.OnNoWorker(now_);
  EXPECT_EQ(Over(kWait - kMoment), "");
  EXPECT_EQ(Over(kWait), "WORKER_STALLED");
  Lose(Refusal());
  EXPECT_EQ(Over(kWait), "WORKER_LOST");
  ledger_.StopWaiting();
  EXPECT_EQ(Over(kWait), "");
}

TEST_F(RetryLedgerTest, WhatDeathsNotKnownYetDecideWaitsHalfASecond) {
  Lose(Unavailable("WORKER_LOST"));
  EXPECT_EQ(Pause(), absl::ZeroDuration());
  Lose(Unavailable("WORKER_LOST"));
  EXPECT_EQ(Pause(), absl::ZeroDuration()) << "the worker had let it in";
  StreamEnd unheard = End(Unavailable("WORKER_LOST"));
  unheard.heard = false;
  ledger_.OnEnd(unheard, 1, /*unclear=*/false, signs_);
  EXPECT_EQ(Pause(), kSameWorkerPause) << "as if several workers were gone";
  ledger_ = RetryLedger();
  ledger_.OnEnd(unheard, 1, /*unclear=*/false, signs_);
  EXPECT_EQ(Pause(), absl::ZeroDuration()) << "the first";
  ledger_.OnEnd(End(Unavailable("WORKER_LOST")), 1, /*unclear=*/true, signs_);
  EXPECT_EQ(Pause(), kSameWorkerPause);
}

TEST_F(RetryLedgerTest, APairWhoseTwoWorkersLiveHasLostNoWorker) {
  Lose(Unavailable("PREFILL_LOST"), 1, 2);
  EXPECT_FALSE(ledger_.MayWait());
  RouteRequest wanted;
  ledger_.Ask(&wanted);
  EXPECT_TRUE(wanted.after_loss);
  EXPECT_FALSE(wanted.may_refuse);
  RetryLedger dead;
  signs_.dead = {2};
  dead.OnEnd(End(Unavailable("PREFILL_LOST"), 1, 2), 1, false, signs_);
  EXPECT_TRUE(dead.MayWait());
  signs_.dead.clear();
  RetryLedger alone;
  alone.OnEnd(End(Unavailable("PREFILL_LOST"), 1), 1, false, signs_);
  EXPECT_TRUE(alone.MayWait());
}

TEST_F(RetryLedgerTest, WorkersThatWereCalledAreAvoidedForHalfASecond) {
  RouteRequest wanted;
  ledger_.Ask(&wanted);
  EXPECT_TRUE(wanted.may_refuse);
  EXPECT_FALSE(wanted.after_loss);
  Lose(Refusal(), 1);
  ledger_.Ask(&wanted);
  EXPECT_TRUE(wanted.may_refuse) << "nothing has been sent to the client";
  EXPECT_TRUE(wanted.avoided_prefill_may_do) << "it was only busy";
  Lose(Unavailable("WORKER_LOST"), 2, 3);
  ledger_.Ask(&wanted);
  EXPECT_THAT(wanted.avoid, ElementsAre(Incarnation{1, 0}, Incarnation{2, 0}));
  EXPECT_FALSE(wanted.may_refuse);
  ledger_.AvoidNoneAfterPause(now_ + kSameWorkerPause - kMoment);
  EXPECT_EQ(ledger_.avoided().size(), 2u);
  ledger_.AvoidNoneAfterPause(now_ + kSameWorkerPause);
  EXPECT_THAT(ledger_.avoided(), IsEmpty());
  ledger_.OnProgress();
  ledger_.Ask(&wanted);
  EXPECT_FALSE(wanted.may_refuse) << "the client has a part of the answer";
  EXPECT_FALSE(wanted.avoided_prefill_may_do);
}

struct PausedClock final : Clock {
  absl::Duration since;
  absl::Time Now() const override { return absl::UnixEpoch(); }
  absl::Duration SinceStart() const override { return kStart; }
  absl::Duration SincePause() const override { return since; }
};

TEST(BlameNowTest, AfterAPauseOfTheRouterNoWorkerIsToBlame) {
  PausedClock awake;
  awake.since = absl::Seconds(1);
  EXPECT_EQ(BlameNow(awake, Blame::kAnswers), Blame::kNone);
  awake.since += kMoment;
  EXPECT_EQ(BlameNow(awake, Blame::kAnswers), Blame::kAnswers);
}

}  // namespace
}  // namespace baton::router
