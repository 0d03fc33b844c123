// Requests that wait: for a full worker, for the retry budget, for any worker at all; and what must
// not come of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/router/call_harness.h"

namespace baton::router {
namespace {

using ::baton::testing::CallHarness;
using ::baton::testing::FakeSink;
using ::baton::testing::kSocketClosed;

class FullWorkerTest : public CallHarness {
 protected:
  // One prefill worker and two to decode; the first of them writes "a" and dies.
  FakeSink& LoseOneOfTwo() {
    Begin();
    Lose(1);
    Lose(4);
    FakeSink& sink = Start(Request());
    stream(0).SayTokens("a");
    Lose(stream(0).worker);
    stream(0).End(kSocketClosed);
    survivor_ = stream(1).worker;
    return sink;
  }
  void Lose(int worker) {
    reporting_[worker] = false;
    LoseWatch(worker);
  }
  int survivor_ = 0;
};

class RefusedTest : public FullWorkerTest, public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Reasons, RefusedTest,
                         ::testing::Values("QUEUE_FULL", "TENANT_LIMIT", "DEADLINE_UNREACHABLE"));

TEST_P(RefusedTest, ByALoneSurvivorOneAsksAgainAfterPausesThatGrow) {
  FakeSink& sink = LoseOneOfTwo();
  size_t last = 1;
  absl::Duration pause = absl::Milliseconds(200);
  for (int refusal = 0; refusal < 4; ++refusal, pause *= 2) {
    stream(last).End(absl::StatusCode::kResourceExhausted, GetParam());
    Pass(pause - absl::Milliseconds(1));
    EXPECT_EQ(network_.count(), last + 1) << "asked again too soon";
    Pass(absl::Milliseconds(1));
    ++last;
    EXPECT_EQ(stream(last).worker, survivor_);
    EXPECT_EQ(stream(last).Tokens(), "prompt:a");
    EXPECT_TRUE(stream(last).request.has_prefill()) << "which need not be the one that is full";
  }
  EXPECT_FALSE(sink.ended());
  stream(last).Finish("b");
  EXPECT_TRUE(sink.End().ok()) << sink.End();
  EXPECT_EQ(sink.choice().text(), "ab");
}

TEST_F(FullWorkerTest, TheWaitForRoomLastsWhileTheSurvivorLivesAndItsTriesAreFew) {
  options_.failover_wait_ms = 5000;
  FakeSink& sink = LoseOneOfTwo();
  size_t refused = 1;
  const auto refuse_for = [&](absl::Duration time) {
    for (absl::Duration waited; waited < time; waited += absl::Milliseconds(50)) {
      for (; refused < network_.count(); ++refused) {
        stream(refused).End(absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
      }
      Pass(absl::Milliseconds(50));
    }
  };
  refuse_for(absl::Seconds(60));
  EXPECT_FALSE(sink.ended());
  EXPECT_LE(network_.count(), 42u);
  // The wait without a survivor is another one.
  Lose(survivor_);
  refuse_for(absl::Milliseconds(4900));
  EXPECT_FALSE(sink.ended());
  refuse_for(absl::Milliseconds(200));
  EXPECT_EQ(sink.End().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(sink.End()), "WORKER_LOST");
  EXPECT_TRUE(ErrorRetryAfter(sink.End()).has_value());
}

TEST_F(FullWorkerTest, TimeInAWorkersQueueIsNoWait) {
  options_.failover_wait_ms = 5000;
  FakeSink& sink = LoseOneOfTwo();
  for (int i = 0; i < 20; ++i) Pass(absl::Seconds(1));
  stream(1).End(absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  Pass(absl::Milliseconds(200));
  stream(2).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

TEST_F(FullWorkerTest, OneThatHasNoTokensIsToldOfTheSecondRefusal) {
  FakeSink& sink = Start(Request());
  stream(0).End(absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  stream(1).End(absl::StatusCode::kResourceExhausted, "QUEUE_FULL");
  EXPECT_EQ(ErrorReason(sink.End()), "QUEUE_FULL");
  EXPECT_EQ(network_.count(), 2u);
}

using FailedPairTest = CallHarness;

TEST_F(FailedPairTest, APrefillWorkerThatDeliveredIsAskedAgainWhenItsPartnerDrains) {
  v1::GenerateRequest request = Request();
  request.set_text(std::string(100, 'p'));  // whole blocks, which it has now
  FakeSink& sink = Start(request);
  stream(0).SayTokens("a");
  stream(0).SayTokens("b");
  stream(0).End(absl::StatusCode::kUnavailable, "DRAINING");
  EXPECT_NE(stream(1).worker, stream(0).worker);
  EXPECT_EQ(stream(1).request.prefill().address(), stream(0).request.prefill().address());
  stream(1).Finish("c");
  EXPECT_EQ(sink.choice().text(), "abc");
}

TEST_F(FailedPairTest, AskingForAnotherPairWhereThereIsNoneDoesNotTakeTheTryOfAnAvoidedOne) {
  Begin();
  for (int worker : {1, 3, 4}) LoseWatch(worker);
  RouteRequest wanted;
  wanted.model_fingerprint = fleet_->roster.model()->fingerprint;
  wanted.prompt_tokens = 100;
  const Route pair = *fleet_->planner.Choose(wanted);
  for (int i = 0; i < 2; ++i) fleet_->planner.OnRouteFailed(pair, Blame::kPair);
  ASSERT_TRUE(fleet_->planner.Choose(wanted)->together()) << "avoided";
  testing::RunFor(kFirstAvoidance, clock_, awake_);
  const std::vector<Route> used = {pair};
  wanted.failed = used;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(fleet_->planner.Choose(wanted).ok());
  wanted.failed = {};
  wanted.lost = used;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(fleet_->planner.Choose(wanted).ok());
  wanted.lost = {};
  EXPECT_EQ(fleet_->planner.Choose(wanted)->computes.worker, pair.computes.worker);
}

TEST_F(FailedPairTest, AnAnswerForWhichNoKvWasMovedShowsNothingOfThePair) {
  Begin();
  for (int worker : {1, 3, 4}) LoseWatch(worker);
  RouteRequest wanted;
  wanted.model_fingerprint = fleet_->roster.model()->fingerprint;
  wanted.prompt_tokens = 100;
  const Route pair = *fleet_->planner.Choose(wanted);
  auto answer = [&, opened = size_t{0}](int64_t kv_bytes) mutable {
    FakeSink& sink = Start(Request());
    internal::v1::DecodeResponse told;
    told.mutable_usage()->set_kv_bytes(kv_bytes);
    stream(opened).Say(told);
    stream(opened++).Finish("done");
    EXPECT_TRUE(sink.End().ok());
  };
  for (const int64_t kv_bytes : {1000, 0}) {
    fleet_->planner.OnRouteFailed(pair, Blame::kPair);
    answer(kv_bytes);
    fleet_->planner.OnRouteFailed(pair, Blame::kPair);
    const bool avoided = fleet_->planner.Choose(wanted)->together();
    EXPECT_EQ(avoided, kv_bytes == 0);
    if (!avoided) fleet_->planner.OnRouteWorked(pair, /*kv_moved=*/true);
  }
}

TEST_F(FailedPairTest, AWorkerThatWasLostMayBeUsedAsAnotherProcess) {
  Begin();
  RouteRequest wanted;
  wanted.model_fingerprint = fleet_->roster.model()->fingerprint;
  const std::vector<Route> lost = {*fleet_->planner.Choose(wanted)};
  wanted.lost = lost;
  for (int worker : {2, 3, 4}) {
    if (worker != lost[0].answers.worker) LoseWatch(worker);
  }
  EXPECT_FALSE(fleet_->planner.Choose(wanted).ok());
  Introduce(lost[0].answers.worker);
  EXPECT_TRUE(fleet_->planner.Choose(wanted).ok());
}

TEST_F(FailedPairTest, TokensOfAChoiceThatTheWorkerWasNotAskedForEndTheRequest) {
  FakeSink& sink = Start(Request(2));
  for (int choice : {0, 1}) stream(0).SayTokens("x", choice);
  for (int worker : {2, 3, 4}) {
    if (worker == stream(0).worker) LoseWatch(worker);
  }
  stream(0).End(kSocketClosed);
  // Choice 1 waits for a worker.
  for (int worker : {2, 3, 4}) {
    reporting_[worker] = false;
    LoseWatch(worker);
  }
  stream(2).End(kSocketClosed);
  stream(1).Finish("y", 1);
  EXPECT_EQ(ErrorReason(sink.End()), "WORKER_FAILED");
  Pass(absl::Seconds(1));
}

using BudgetTest = CallHarness;

TEST_F(BudgetTest, ChoicesThatCannotAllGoOnTakeNothing) {
  budget_limits_ = {.share = 0.1, .reserve = 10, .capacity = 100};
  options_.failover_wait_ms = 3000;
  FakeSink& sink = Start(Request(16));
  stream(0).SayTokens("a");
  stream(0).End(kSocketClosed);
  for (int i = 0; i < 29; ++i) Pass(absl::Milliseconds(100));
  EXPECT_FALSE(sink.ended());
  Pass(absl::Milliseconds(200));
  EXPECT_EQ(ErrorReason(sink.End()), "RETRY_BUDGET_EXHAUSTED");
  EXPECT_NEAR(budget_->level(), 10 + 1.6, 1e-9);
  EXPECT_EQ(network_.count(), 1u);
}

TEST_F(BudgetTest, ASearchCountsItsBeams) {
  auto request = Request(2);
  request.set_beam_width(8);
  FakeSink& sink = Start(request);
  stream(0).End(kSocketClosed);
  EXPECT_NEAR(budget_->level(), 32 + 0.8 - 8, 1e-9);
  stream(1).Finish("x", 0);
  stream(1).Finish("y", 1);
  EXPECT_TRUE(sink.End().ok());
}

TEST_F(BudgetTest, WhatWaitsForAWorkerTakesNothing) {
  budget_limits_ = {.share = 0, .reserve = 2, .capacity = 100};
  options_.failover_wait_ms = 3000;
  FakeSink& sink = Start(Request(2));
  for (int choice : {0, 1}) stream(0).SayTokens("x", choice);
  stream(0).End(kSocketClosed);
  EXPECT_EQ(budget_->level(), 0) << "nothing says yet that the worker has died";
  for (int worker : {2, 3, 4}) {
    reporting_[worker] = false;
    LoseWatch(worker);
  }
  for (size_t i : {1, 2}) stream(i).End(kSocketClosed);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(budget_->level(), 2);
    Pass(absl::Milliseconds(100));
  }
  EXPECT_FALSE(sink.ended());
  Pass(absl::Seconds(1));
  EXPECT_EQ(ErrorReason(sink.End()), "WORKER_LOST");
  EXPECT_EQ(budget_->level(), 2);
  EXPECT_EQ(network_.count(), 3u);
}

using UnreadCallTest = CallHarness;

TEST_F(UnreadCallTest, AnAnswerThatIsNotReadTakesNoPlace) {
  options_.max_inflight_requests = 1;
  FakeSink& sink = Start(Request());
  EXPECT_EQ(admission_->load().inside.requests, 1);
  stream(0).Finish("x");
  EXPECT_TRUE(sink.End().ok());
  EXPECT_EQ(admission_->load().inside.requests, 0);
  EXPECT_EQ(admission_->load().inside.prompt_tokens, 0);
  EXPECT_FALSE(Start(Request()).ended()) << "another one is let in";
}

TEST_F(UnreadCallTest, AClientThatStopsReadingEndsItsRequest) {
  FakeSink& sink = Start(Request());
  stream(0).SayTokens("x");
  Tick();
  EXPECT_FALSE(sink.ended());
  sink.Stall();
  Tick();
  EXPECT_EQ(ErrorReason(sink.End()), "READER_STALLED");
  EXPECT_EQ(sink.End().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(stream(0).cancelled);
  EXPECT_EQ(ErrorReason(sink.abort()), "READER_STALLED");
}

TEST_F(UnreadCallTest, AClientThatStopsReadingTheEndOfItsAnswerLosesIt) {
  FakeSink& sink = Start(Request());
  stream(0).Finish("x");
  Tick();
  EXPECT_FALSE(sink.aborted());
  sink.Stall();
  Tick();
  EXPECT_TRUE(sink.End().ok()) << "it has ended already";
  EXPECT_EQ(ErrorReason(sink.abort()), "READER_STALLED");
}

TEST_F(UnreadCallTest, AnAnswerThatIsNotReadIsGivenUpAtItsDeadlineAndNotBefore) {
  FakeSink& sink = Start(Request(), absl::Seconds(10));
  stream(0).Finish("x");
  EXPECT_TRUE(sink.ended());
  Pass(absl::Seconds(9));
  EXPECT_FALSE(sink.aborted());
  Pass(absl::Seconds(1));
  EXPECT_TRUE(sink.aborted());
  FakeSink& read = Start(Request(), absl::Seconds(10));
  stream(1).Finish("x");
  call().OnSinkGone();
  Pass(absl::Seconds(11));
  EXPECT_FALSE(read.aborted());
}

}  // namespace
}  // namespace baton::router
