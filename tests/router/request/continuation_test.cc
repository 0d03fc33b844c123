// What becomes of the requests whose workers die or hang: who pays, what they wait for, and which
// requests stand back for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/base/error.h"
#include "router/request/continuation_line.h"
#include "tests/router/call_harness.h"

namespace baton::router {
namespace {

using ::baton::testing::CallHarness;
using ::baton::testing::FakeSink;
using ::baton::testing::kSocketClosed;

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

class ContinuationTest : public CallHarness {
 protected:
  // The budget pays for nothing.
  void SpendBudget() { budget_limits_ = {.share = 0, .reserve = 0, .capacity = 100}; }
  void Silence(int worker) { reporting_[worker] = false; }
  // Its streams, if it has any, do not end by that.
  void Kill(int worker) {
    Silence(worker);
    LoseWatch(worker);
  }
  void Restart(int worker) {
    reporting_[worker] = true;
    Introduce(worker);
  }
  // So many requests, whose first streams are the first of the network; each has written "a".
  std::vector<FakeSink*> StartMany(int count) {
    std::vector<FakeSink*> sinks;
    for (int i = 0; i < count; ++i) {
      sinks.push_back(&Start(Request()));
      stream(static_cast<size_t>(i)).SayTokens("a");
    }
    return sinks;
  }
  std::vector<size_t> StreamsOn(int worker) {
    std::vector<size_t> found;
    for (size_t i = 0; i < network_.count(); ++i) {
      if (stream(i).worker == worker && !stream(i).cancelled) found.push_back(i);
    }
    return found;
  }
  void PassTicks(absl::Duration time) {
    for (absl::Duration passed; passed < time; passed += absl::Milliseconds(50)) {
      Pass(absl::Milliseconds(50));
    }
  }
  // One prefill worker and two to decode, of which one has died: its request has one token and asks
  // the other.
  FakeSink& LoseOneOfTwo() {
    Begin();
    for (int worker : {1, 4}) Kill(worker);
    FakeSink& sink = Start(Request());
    stream(0).SayTokens("a");
    Kill(stream(0).worker);
    stream(0).End(kSocketClosed);
    survivor_ = stream(1).worker;
    return sink;
  }
  void RefuseLast(const char* reason = "QUEUE_FULL") {
    stream(network_.count() - 1).End(kExhausted, reason);
  }
  int survivor_ = 0;
};

class DeathTest : public ContinuationTest, public ::testing::WithParamInterface<bool> {};

INSTANTIATE_TEST_SUITE_P(WatchEndsFirst, DeathTest, ::testing::Bool());

TEST_P(DeathTest, DozensOfStreamsOfADeadWorkerGoOnWithoutAnyBudget) {
  SpendBudget();
  constexpr int kRequests = 90;
  const std::vector<FakeSink*> sinks = StartMany(kRequests);
  const int dead = stream(0).worker;
  const std::vector<size_t> lost = StreamsOn(dead);
  ASSERT_GE(lost.size(), 24u);
  if (GetParam()) Kill(dead);
  for (size_t i : lost) stream(i).End(kSocketClosed);
  if (!GetParam()) {
    EXPECT_EQ(network_.count(), size_t{kRequests}) << "none goes on before the death is known";
    EXPECT_EQ(continuations_.waiting(), static_cast<int>(lost.size()));
    Kill(dead);
    Tick();
  }
  ASSERT_EQ(network_.count(), kRequests + lost.size());
  EXPECT_EQ(continuations_.waiting(), 0);
  for (size_t i = kRequests; i < network_.count(); ++i) {
    EXPECT_NE(stream(i).worker, dead);
    EXPECT_EQ(stream(i).Tokens(), "prompt:a");
    EXPECT_TRUE(stream(i).request.continuation());
  }
  EXPECT_FALSE(stream(0).request.continuation());
  for (size_t i = 0; i < network_.count(); ++i) {
    if (std::find(lost.begin(), lost.end(), i) == lost.end()) stream(i).Finish("b");
  }
  for (FakeSink* sink : sinks) {
    ASSERT_TRUE(sink->End().ok()) << sink->End();
    EXPECT_EQ(sink->choice().text(), "ab");
  }
  EXPECT_EQ(budget_->level(), 0);
}

TEST_F(ContinuationTest, ALoneStreamResetIsChargedAndGivenBackWhenTheWorkerProvesDead) {
  budget_limits_ = {.share = 0, .reserve = 5, .capacity = 100};
  StartMany(1);
  const int first = stream(0).worker;
  stream(0).End(kSocketClosed);
  EXPECT_EQ(budget_->level(), 4);
  PassTicks(absl::Seconds(1));
  EXPECT_EQ(budget_->level(), 4);
  Kill(first);
  EXPECT_EQ(budget_->level(), 5);
  // Much later, it is another matter.
  stream(1).SayTokens("b");
  const int second = stream(1).worker;
  stream(1).End(kSocketClosed);
  EXPECT_EQ(budget_->level(), 4);
  for (int i = 0; i < 11; ++i) {
    stream(2).SayTokens("c");
    Pass(absl::Seconds(1));
  }
  Kill(second);
  EXPECT_EQ(budget_->level(), 4);
}

TEST_F(ContinuationTest, ASearchIsGivenBackInItsBeams) {
  auto request = Request(2);
  request.set_beam_width(8);
  budget_limits_ = {.share = 0, .reserve = 10, .capacity = 100};
  Start(request);
  const int worker = stream(0).worker;
  stream(0).End(kSocketClosed);
  EXPECT_EQ(budget_->level(), 2);
  Restart(worker);  // another process, before its Watch stream was seen to break
  EXPECT_EQ(budget_->level(), 10);
}

TEST_F(ContinuationTest, AStallBesideASilentWatchIsADeathAndALoneOneIsCharged) {
  for (const bool alone : {true, false}) {
    budget_limits_ = {.share = 0, .reserve = 5, .capacity = 100};
    const size_t first = network_.count();
    FakeSink& sink = Start(Request());
    stream(first).SayTokens("a");
    const double level = budget_->level();
    if (!alone) Silence(stream(first).worker);
    PassTicks(absl::Milliseconds(5100));
    EXPECT_TRUE(stream(first).cancelled);
    EXPECT_EQ(budget_->level(), alone ? level - 1 : level);
    stream(first + 1).Finish("b");
    EXPECT_EQ(sink.choice().text(), "ab");
  }
}

TEST_F(ContinuationTest, AllStreamsThatStopWithAHungWorkerGoOnElsewhere) {
  SpendBudget();
  const std::vector<FakeSink*> sinks = StartMany(75);
  const int hung = stream(0).worker;
  const std::vector<size_t> lost = StreamsOn(hung);
  ASSERT_GE(lost.size(), 24u);
  Silence(hung);
  for (int second = 0; second < 6; ++second) {
    for (size_t i = 0; i < network_.count(); ++i) {
      if (stream(i).worker != hung) stream(i).Say(internal::v1::DecodeResponse());
    }
    PassTicks(absl::Seconds(1));
  }
  ASSERT_EQ(network_.count(), 75 + lost.size());
  for (size_t i : lost) EXPECT_TRUE(stream(i).cancelled);
  for (size_t i = 0; i < network_.count(); ++i) {
    if (stream(i).worker != hung) stream(i).Finish("b");
  }
  for (FakeSink* sink : sinks) EXPECT_EQ(sink->choice().text(), "ab");
}

TEST_F(ContinuationTest, AStallThatComesBeforeTheSuspicionWaitsForIt) {
  SpendBudget();
  options_.stall_timeout_ms = 1000;
  FakeSink& sink = StartMany(1)[0][0];
  Silence(stream(0).worker);
  PassTicks(absl::Milliseconds(2900));
  EXPECT_TRUE(stream(0).cancelled);
  EXPECT_EQ(network_.count(), 1u);
  PassTicks(absl::Milliseconds(200));
  stream(1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

TEST_F(ContinuationTest, ADeadPrefillWorkerIsADeathToo) {
  SpendBudget();
  FakeSink& sink = StartMany(1)[0][0];
  const int prefill = stream(0).request.prefill().address() == "p0:1" ? 0 : 1;
  stream(0).End(absl::StatusCode::kUnavailable, "PREFILL_LOST");
  Tick();
  EXPECT_EQ(network_.count(), 1u);
  Kill(prefill);
  Tick();
  stream(1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

TEST_F(ContinuationTest, WhereNothingDiedTheBudgetIsWaitedFor) {
  budget_limits_ = {.share = 0.1, .reserve = 0, .capacity = 100};
  FakeSink& sink = StartMany(1)[0][0];
  stream(0).End(kSocketClosed);
  Tick();
  EXPECT_EQ(network_.count(), 1u);
  for (size_t i = 1; i < 10; ++i) Start(Request());
  Tick();
  ASSERT_EQ(network_.count(), 11u);
  stream(10).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
  EXPECT_NEAR(budget_->level(), 0, 1e-6);
}

TEST_F(ContinuationTest, WithNoSurvivorAllWaitAndAreThenToldWhenToTryAgain) {
  options_.failover_wait_ms = 4000;
  FakeSink& begun = StartMany(1)[0][0];
  FakeSink& not_begun = Start(Request());
  stream(1);
  for (int worker : {2, 3, 4}) Kill(worker);
  for (size_t i : {0, 1}) stream(i).End(kSocketClosed);
  EXPECT_EQ(ErrorReason(Start(Request()).End()), "NO_WORKER") << "new ones need not wait";
  PassTicks(absl::Milliseconds(3900));
  for (FakeSink* sink : {&begun, &not_begun}) EXPECT_FALSE(sink->ended());
  PassTicks(absl::Milliseconds(200));
  for (FakeSink* sink : {&begun, &not_begun}) {
    EXPECT_EQ(sink->End().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ErrorReason(sink->End()), "WORKER_LOST");
    EXPECT_TRUE(ErrorRetryAfter(sink->End()).has_value());
  }
  EXPECT_EQ(network_.count(), 2u);
  EXPECT_EQ(continuations_.waiting(), 0);
}

TEST_F(ContinuationTest, AWorkerThatComesWithinTheWaitIsUsedAndByTheOldestFirst) {
  SpendBudget();
  const std::vector<FakeSink*> sinks = StartMany(10);
  FakeSink& not_begun = Start(Request());
  stream(10);
  for (int worker : {2, 3, 4}) Kill(worker);
  for (size_t i = 11; i-- > 0;) stream(i).End(kSocketClosed);  // the youngest is lost first
  PassTicks(absl::Seconds(4));
  EXPECT_EQ(continuations_.waiting(), 11);
  EXPECT_EQ(network_.count(), 11u);
  Restart(3);
  Tick();
  ASSERT_EQ(network_.count(), 22u);
  for (size_t i = 11; i < 22; ++i) EXPECT_EQ(stream(i).worker, 3);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(stream(11 + i).request.request_id(), stream(i).request.request_id());
  }
  EXPECT_TRUE(stream(21).request.continuation());
  stream(21).Finish("x");
  EXPECT_EQ(not_begun.choice().text(), "x");
}

TEST_F(ContinuationTest, ASurvivorThatWasThereStartsTheWaitAnew) {
  options_.failover_wait_ms = 2000;
  FakeSink& sink = LoseOneOfTwo();
  RefuseLast();
  for (int round = 0; round < 3; ++round) {
    Kill(survivor_);
    PassTicks(absl::Milliseconds(1900));
    ASSERT_FALSE(sink.ended());
    Restart(survivor_);
    Tick();
    RefuseLast();
    Tick();
  }
  EXPECT_FALSE(sink.ended());
}

TEST_F(ContinuationTest, AWorkerThatWasStartedAgainIsUsedAtOnce) {
  Begin();
  for (int worker : {3, 4}) Kill(worker);
  FakeSink& sink = StartMany(1)[0][0];
  Kill(2);
  stream(0).End(kSocketClosed);
  Restart(2);
  Tick();
  stream(1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

TEST_F(ContinuationTest, RefusalsAreFreeForThoseThatLostAWorkerAndForNoOthers) {
  budget_limits_ = {.share = 0, .reserve = 5, .capacity = 100};
  FakeSink& sink = LoseOneOfTwo();
  for (int i = 0; i < 8; ++i) {
    RefuseLast();
    PassTicks(absl::Milliseconds(1600));
  }
  EXPECT_FALSE(sink.ended());
  EXPECT_EQ(budget_->level(), 5);
  stream(network_.count() - 1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
  Restart(4);
  Start(Request());
  RefuseLast();
  EXPECT_EQ(budget_->level(), 4);
}

TEST_F(ContinuationTest, OneWithoutTokensWaitsForRoomToo) {
  options_.failover_wait_ms = 1000;
  Begin();
  Kill(4);
  FakeSink& sink = Start(Request());
  Kill(stream(0).worker);
  stream(0).End(kSocketClosed);
  for (int i = 0; i < 8; ++i) {
    RefuseLast(i == 0 ? "TENANT_LIMIT" : "QUEUE_FULL");
    PassTicks(absl::Milliseconds(1600));
    ASSERT_FALSE(sink.ended());
  }
  stream(network_.count() - 1).Finish("x");
  EXPECT_EQ(sink.choice().text(), "x");
}

TEST_F(ContinuationTest, NewRequestsAreRefusedWhileContinuationsAreAndAdmittedAfterwards) {
  FakeSink& sink = LoseOneOfTwo();
  const auto new_one = [this] { return &Start(Request()); };
  FakeSink* before = new_one();
  EXPECT_FALSE(before->ended()) << "nothing was refused yet";
  stream(1).End(kExhausted, "QUEUE_FULL");
  for (absl::Duration pause : {absl::Milliseconds(200), absl::Milliseconds(400)}) {
    const absl::Status refused = new_one()->End();
    EXPECT_EQ(refused.code(), kExhausted);
    EXPECT_EQ(ErrorReason(refused), "SURVIVORS_FULL");
    EXPECT_TRUE(ErrorRetryAfter(refused).has_value());
    const size_t count = network_.count();
    PassTicks(pause);
    ASSERT_EQ(network_.count(), count + 1);
    EXPECT_EQ(ErrorReason(new_one()->End()), "SURVIVORS_FULL") << "while it asks";
    RefuseLast();
  }
  PassTicks(absl::Milliseconds(800));
  stream(network_.count() - 1)
      .Say(internal::v1::DecodeResponse());  // it is let in, and waits there
  FakeSink* after = new_one();
  EXPECT_FALSE(after->ended());
  EXPECT_FALSE(sink.ended());
}

TEST_F(ContinuationTest, AContinuationThatEndsLetsNewRequestsIn) {
  LoseOneOfTwo();
  RefuseLast();
  EXPECT_EQ(ErrorReason(Start(Request()).End()), "SURVIVORS_FULL");
  FakeSink& other = Start(Request());
  EXPECT_TRUE(other.ended());
  EXPECT_EQ(continuations_.waiting(), 1);
  first_call().Cancel();
  EXPECT_EQ(continuations_.waiting(), 0);
  EXPECT_FALSE(Start(Request()).ended());
}

TEST_F(ContinuationTest, AnAttemptThatIsNotAnsweredKeepsNewRequestsOutForASecondOnly) {
  LoseOneOfTwo();
  RefuseLast();
  PassTicks(absl::Milliseconds(1150));  // asked again after 200 ms
  EXPECT_EQ(ErrorReason(Start(Request()).End()), "SURVIVORS_FULL");
  PassTicks(absl::Milliseconds(50));
  EXPECT_FALSE(Start(Request()).ended());
}

TEST_F(ContinuationTest, ATenantsOwnLimitKeepsNoOtherRequestOut) {
  LoseOneOfTwo();
  RefuseLast("TENANT_LIMIT");
  EXPECT_FALSE(Start(Request()).ended());
}

TEST_F(ContinuationTest, ARequestThatNoWorkerTakesDoesNotKeepNewOnesOutForEver) {
  FakeSink& sink = LoseOneOfTwo();
  absl::Duration out;
  size_t next = 1;
  for (absl::Duration passed; passed < absl::Minutes(2); passed += absl::Milliseconds(50)) {
    for (; next < network_.count(); ++next) stream(next).End(kExhausted, "QUEUE_FULL");
    if (continuations_.KeepsNewOut(clock_.SinceStart())) out += absl::Milliseconds(50);
    Pass(absl::Milliseconds(50));
  }
  EXPECT_FALSE(sink.ended());
  EXPECT_GE(out, absl::Seconds(29));
  EXPECT_LE(out, absl::Seconds(30));
}

// In one run, three of four workers froze a few seconds apart: two of eighty streams met all of
// them.
TEST_F(ContinuationTest, WorkersThatFreezeOneAfterTheOtherCostARequestNothing) {
  SpendBudget();
  FakeSink& sink = StartMany(1)[0][0];
  for (size_t i = 0; i < 8; ++i) {
    const int frozen = stream(i).worker;
    stream(i).Say(internal::v1::DecodeResponse());  // it runs there, and has no token yet
    Silence(frozen);
    for (int tick = 0; tick < 200 && network_.count() == i + 1; ++tick) {
      Pass(absl::Milliseconds(50));
      if (i % 2 == 1 && tick == 100) {  // its connection is closed before it expires
        LoseWatch(frozen);
        stream(i).End(kSocketClosed);
      }
    }
    ASSERT_FALSE(sink.ended()) << i << ": " << sink.End();
    ASSERT_EQ(network_.count(), i + 2);
    EXPECT_NE(stream(i + 1).worker, frozen);
    Restart(frozen);
  }
  stream(8).Finish("b");
  EXPECT_TRUE(sink.End().ok()) << sink.End();
  EXPECT_EQ(sink.choice().text(), "ab");
  EXPECT_EQ(budget_->level(), 0);
}

TEST_F(ContinuationTest, WorkersThatDieWhileARequestIsInTheirQueueCostItNothing) {
  SpendBudget();
  FakeSink& sink = StartMany(1)[0][0];
  for (size_t i = 0; i < 6; ++i) {
    const int worker = stream(i).worker;
    PassTicks(absl::Seconds(2));
    Kill(worker);
    stream(i).End(kSocketClosed);
    PassTicks(absl::Milliseconds(600));
    Restart(worker);
    ASSERT_FALSE(sink.ended()) << i << ": " << sink.End();
    ASSERT_EQ(network_.count(), i + 2);
  }
  stream(6).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

// The worker that says nothing may be frozen, too, though it is not suspect yet.
TEST_F(ContinuationTest, AContinuationGoesToAWorkerThatWasHeardOfLately) {
  Begin();
  for (int round = 0; round < 10; ++round) {
    for (int worker : {2, 3, 4}) Restart(worker);
    const size_t first = network_.count();
    FakeSink& sink = Start(Request());
    stream(first).SayTokens("a");
    const int lost = stream(first).worker;
    const int silent = lost == 2 ? 3 : 2;
    Silence(silent);
    PassTicks(absl::Seconds(2));
    Kill(lost);
    stream(first).End(kSocketClosed);
    EXPECT_EQ(stream(first + 1).worker, 2 + 3 + 4 - lost - silent);
    stream(first + 1).Finish("b");
    EXPECT_EQ(sink.choice().text(), "ab");
  }
}

TEST_F(ContinuationTest, WhereAllAreSilentAContinuationGoesToOneOfThem) {
  SpendBudget();
  FakeSink& sink = StartMany(1)[0][0];
  for (int worker = 0; worker < kWorkers; ++worker) Silence(worker);
  PassTicks(absl::Milliseconds(2500));
  Kill(stream(0).worker);
  stream(0).End(kSocketClosed);
  stream(1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "ab");
}

// The streams break before the deaths are known: the worker after the third is not put at risk.
TEST_F(ContinuationTest, ARequestThatEndsEachWorkerTakesThreeDown) {
  budget_limits_ = {.share = 0, .reserve = 50, .capacity = 100};
  FakeSink& sink = StartMany(1)[0][0];
  for (size_t i = 0; i < 3; ++i) {
    const int worker = stream(i).worker;
    stream(i).Say(internal::v1::DecodeResponse());
    stream(i).End(kSocketClosed);
    EXPECT_FALSE(sink.ended());
    Kill(worker);
    if (i < 2) Restart(worker);
    PassTicks(absl::Milliseconds(100));
  }
  EXPECT_EQ(sink.End().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrorReason(sink.End()), "WORKERS_DIED");
  EXPECT_EQ(network_.count(), 3u);
}

TEST_F(ContinuationTest, ThreeDeathsInARowEndARequestThatNeverGoesOn) {
  SpendBudget();
  FakeSink& sink = StartMany(1)[0][0];
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(sink.ended());
    const int worker = stream(i).worker;
    Kill(worker);
    stream(i).End(kSocketClosed);
    if (i == 2) break;
    Restart(worker);
    PassTicks(absl::Milliseconds(500));
  }
  EXPECT_EQ(ErrorReason(sink.End()), "WORKERS_DIED");
  EXPECT_FALSE(ErrorRetryAfter(sink.End()).has_value()) << "it would end three workers more";
  EXPECT_EQ(network_.count(), 3u);
}

// All machines go at once, and the streams are the first to tell.
TEST_F(ContinuationTest, WhenAllWorkersDieTheStreamsOpenedAreFewAndAllRequestsWait) {
  SpendBudget();
  budget_limits_.reserve = 32;
  options_.max_inflight_requests = 400;
  options_.failover_wait_ms = 5000;
  const std::vector<FakeSink*> sinks = StartMany(400);
  for (size_t i = 0; i < network_.count(); ++i) stream(i).End(kSocketClosed);
  EXPECT_LE(network_.count(), 432u);
  for (int worker : {2, 3, 4}) Kill(worker);
  const size_t told = network_.count();
  PassTicks(absl::Milliseconds(4900));
  EXPECT_EQ(network_.count(), told);
  EXPECT_EQ(continuations_.waiting(), 400);
  EXPECT_EQ(budget_->level(), 32);
  for (FakeSink* sink : sinks) ASSERT_FALSE(sink->ended());
  PassTicks(absl::Milliseconds(200));
  for (FakeSink* sink : sinks) EXPECT_EQ(ErrorReason(sink->End()), "WORKER_LOST");
}

TEST_F(ContinuationTest, APausedClientHearsEverySecondThatItsStreamLives) {
  options_.failover_wait_ms = 60'000;
  FakeSink& sink = StartMany(1)[0][0];
  FakeSink& not_begun = Start(Request());
  stream(1);
  PassTicks(absl::Seconds(3));
  EXPECT_EQ(sink.heartbeats(), 0) << "a stream that goes on needs none";
  for (int worker : {2, 3, 4}) Kill(worker);
  for (size_t i : {0, 1}) stream(i).End(kSocketClosed);
  PassTicks(absl::Seconds(10));
  EXPECT_GE(sink.heartbeats(), 10);
  EXPECT_LE(sink.heartbeats(), 11);
  Restart(2);
  PassTicks(absl::Seconds(4));  // the new stream has no token yet
  EXPECT_GE(sink.heartbeats(), 14);
  EXPECT_LE(sink.heartbeats(), 15);
  stream(2).SayTokens("b");
  const int heard = sink.heartbeats();
  PassTicks(absl::Seconds(3));
  EXPECT_EQ(sink.heartbeats(), heard);
  EXPECT_EQ(not_begun.heartbeats(), 0) << "nothing before the first token";
  stream(2).Finish("c");
  PassTicks(absl::Seconds(3));
  EXPECT_EQ(sink.heartbeats(), heard);
  EXPECT_EQ(sink.choice().text(), "abc");
}

TEST_F(ContinuationTest, TheDeadlineEndsAWait) {
  Begin();
  Kill(4);
  FakeSink& sink = Start(Request(), absl::Seconds(20));
  stream(0).SayTokens("a");
  Kill(stream(0).worker);
  stream(0).End(kSocketClosed);
  size_t next = 1;
  for (absl::Duration passed; passed < absl::Seconds(20); passed += absl::Milliseconds(50)) {
    ASSERT_FALSE(sink.ended());
    for (; next < network_.count(); ++next) stream(next).End(kExhausted, "QUEUE_FULL");
    Pass(absl::Milliseconds(50));
  }
  EXPECT_EQ(sink.End().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ErrorReason(sink.End()), "DEADLINE_EXCEEDED");
}

TEST(ContinuationLineTest, PlacesAndHoldsAreGivenBackHoweverTheyAreMoved) {
  std::vector<int> told;
  ContinuationLine line([&told](int waiting) { told.push_back(waiting); });
  const absl::Duration now = absl::Seconds(10);
  {
    std::vector<ContinuationLine::Place> places;
    for (int i = 0; i < 3; ++i) places.emplace_back(&line);
    places.erase(places.begin());
    EXPECT_EQ(line.waiting(), 2);
  }
  EXPECT_EQ(told, (std::vector<int>{1, 2, 3, 2, 1, 0}));
  EXPECT_FALSE(line.KeepsNewOut(now));
  ContinuationLine::Hold kept(&line, now + absl::Seconds(1));
  {
    ContinuationLine::Hold longer(&line, now + absl::Seconds(5));
    EXPECT_TRUE(line.KeepsNewOut(now + absl::Seconds(4)));
    std::swap(kept, longer);
  }
  EXPECT_TRUE(line.KeepsNewOut(now + absl::Seconds(4))) << "the shorter one is gone";
  EXPECT_FALSE(line.KeepsNewOut(now + absl::Seconds(5)));
}

}  // namespace
}  // namespace baton::router
