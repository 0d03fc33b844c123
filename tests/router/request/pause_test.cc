// Requests while a worker, or the router itself, is paused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/router/call_harness.h"

namespace baton::router {
namespace {

using ::baton::testing::CallHarness;
using ::baton::testing::FakeSink;
using ::baton::testing::kSocketClosed;

class PauseTest : public CallHarness {
 protected:
  // Time passes in which workers report every 250 ms, and the router ticks as often as it does.
  void Live(absl::Duration time) {
    for (absl::Duration end = awake_.SinceStart() + time; awake_.SinceStart() < end;) {
      testing::RunFor(absl::Milliseconds(50), clock_, awake_);
      if (++turns_ % 5 == 0) {
        for (int worker = 0; worker < kWorkers; ++worker) {
          if (reporting_[worker]) Report(worker);
        }
      }
      if (turns_ % 2 == 0) fleet_->roster.Tick();
      Tick();
    }
  }
  void PauseRouter(absl::Duration time) { clock_.Advance(time); }
  FakeSink& BeginWithOneToken() {
    Begin();
    Live(absl::Seconds(10));
    FakeSink& sink = Start(Request());
    stream(0).SayTokens("a");
    return sink;
  }
  v1::WorkerState StateOf(int worker) { return fleet_->roster.Status(worker).state(); }
  // The connection broke, but the worker is the same process.
  void Reconnect(int worker) {
    internal::v1::WatchResponse event;
    *event.mutable_card() = cards_[worker];
    fleet_->roster.OnStreamStarted(worker);
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
    event.mutable_snapshot()->set_last(true);
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
    Report(worker);
  }

 private:
  int turns_ = 0;
};

TEST_F(PauseTest, AStreamOfAStoppedWorkerGoesOnElsewhereWithinTwoSeconds) {
  FakeSink& sink = BeginWithOneToken();
  reporting_[stream(0).worker] = false;
  const absl::Duration stopped = clock_.SinceStart();
  while (network_.count() == 1 && !sink.ended()) Live(absl::Milliseconds(50));
  EXPECT_LE(clock_.SinceStart() - stopped, absl::Milliseconds(1800));
  EXPECT_TRUE(stream(0).cancelled);
  EXPECT_EQ(StateOf(stream(0).worker), v1::WORKER_STATE_SUSPECT);
  EXPECT_NE(stream(1).worker, stream(0).worker);
  stream(0).SayTokens("late");
  stream(1).Finish("b");
  EXPECT_TRUE(sink.End().ok());
  EXPECT_EQ(sink.choice().text(), "ab");
}

TEST_F(PauseTest, ARequestInTheQueueOfAStoppedWorkerGoesElsewhereToo) {
  Begin();
  Live(absl::Seconds(10));
  FakeSink& sink = Start(Request());
  reporting_[stream(0).worker] = false;
  Live(absl::Milliseconds(1800));
  EXPECT_TRUE(stream(0).cancelled);
  stream(1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "b");
}

TEST_F(PauseTest, AWorkerThatPausesForASecondKeepsItsStreams) {
  FakeSink& sink = BeginWithOneToken();
  for (int pause = 0; pause < 10; ++pause) {
    reporting_[stream(0).worker] = false;
    Live(absl::Milliseconds(1050));
    reporting_[stream(0).worker] = true;
    stream(0).SayTokens("b");
    Live(absl::Seconds(3));
  }
  EXPECT_EQ(network_.count(), 1u);
  stream(0).Finish("!");
  EXPECT_EQ(sink.choice().text(), "abbbbbbbbbb!");
}

// No other worker is ready: the stream waits until its worker expires or the stream has stalled.
TEST_F(PauseTest, WithoutAnotherReadyWorkerAStreamStaysWithASuspectOne) {
  FakeSink& sink = BeginWithOneToken();
  for (int worker : {2, 3, 4}) reporting_[worker] = false;
  Live(absl::Seconds(4));
  for (int worker : {2, 3, 4}) EXPECT_EQ(StateOf(worker), v1::WORKER_STATE_SUSPECT);
  EXPECT_FALSE(stream(0).cancelled);
  reporting_[stream(0).worker] = true;
  stream(0).Finish("b");
  EXPECT_TRUE(sink.End().ok());
  EXPECT_EQ(network_.count(), 1u);
}

TEST_F(PauseTest, ANewRequestWaitsWhileAllDecodeWorkersAreSuspect) {
  BeginWithOneToken();
  for (int worker : {2, 3, 4}) reporting_[worker] = false;
  Live(absl::Seconds(2));
  FakeSink& waits = Start(Request());
  Live(absl::Milliseconds(500));
  EXPECT_FALSE(waits.ended());
  EXPECT_EQ(network_.count(), 1u);
  reporting_[3] = true;
  Live(absl::Milliseconds(300));
  // The stream of a worker that is still suspect moves there, too.
  ASSERT_EQ(network_.count(), 3u);
  for (size_t i : {1, 2}) {
    EXPECT_EQ(stream(i).worker, 3);
    stream(i).Finish("b");
  }
  EXPECT_TRUE(waits.End().ok());
}

TEST_F(PauseTest, TheWaitOfANewRequestHasABoundAndEndsWithTheHope) {
  options_.failover_wait_ms = 1000;
  BeginWithOneToken();
  for (int worker : {2, 3, 4}) reporting_[worker] = false;
  Live(absl::Seconds(2));
  FakeSink& bound = Start(Request());
  FakeSink& late = Start(Request(), absl::Milliseconds(300));
  Live(absl::Milliseconds(400));
  EXPECT_EQ(late.End().code(), absl::StatusCode::kDeadlineExceeded);
  Live(absl::Milliseconds(500));
  EXPECT_FALSE(bound.ended());
  Live(absl::Milliseconds(200));
  EXPECT_EQ(ErrorReason(bound.End()), "NO_WORKER");
  FakeSink& hopeless = Start(Request());
  for (int worker : {2, 3, 4}) LoseWatch(worker);
  Live(absl::Milliseconds(50));
  EXPECT_EQ(ErrorReason(hopeless.End()), "NO_WORKER");
}

TEST_F(PauseTest, ARouterThatWasPausedLosesNoStream) {
  FakeSink& sink = BeginWithOneToken();
  for (const absl::Duration pause : {absl::Seconds(4), absl::Seconds(8), absl::Minutes(10)}) {
    PauseRouter(pause);
    Tick();  // the messages that wait have not been read yet
    awake_.Beat();
    fleet_->roster.Tick();
    Tick();
    EXPECT_FALSE(stream(0).cancelled) << pause;
    stream(0).SayTokens("b");
    Live(absl::Seconds(5));
    stream(0).Say(internal::v1::DecodeResponse());
  }
  EXPECT_EQ(network_.count(), 1u);
  stream(0).Finish("!");
  EXPECT_EQ(sink.choice().text(), "abbb!");
}

// The workers have closed the connections of a router that did not answer for long.
TEST_F(PauseTest, AfterAPauseNewRequestsWaitUntilWorkersAreConnectedAgainAndBlameNone) {
  FakeSink& begun = BeginWithOneToken();
  const double level = budget_->level();
  PauseRouter(absl::Seconds(8));
  for (int worker = 0; worker < kWorkers; ++worker) {
    LoseWatch(worker);
    reporting_[worker] = false;
  }
  FakeSink& fresh = Start(Request());
  stream(0).End(kSocketClosed);
  Live(absl::Milliseconds(200));
  EXPECT_FALSE(fresh.ended());
  EXPECT_FALSE(begun.ended());
  for (int worker = 0; worker < kWorkers; ++worker) {
    Reconnect(worker);
    reporting_[worker] = true;
  }
  Live(absl::Milliseconds(50));
  ASSERT_EQ(network_.count(), 3u);
  EXPECT_GE(budget_->level(), level);
  stream(1).Finish("b");
  stream(2).Finish("b");
  EXPECT_TRUE(begun.End().ok());
  EXPECT_TRUE(fresh.End().ok());
}

TEST_F(PauseTest, AStoppedPrefillWorkerIsReplacedBeforeItsConnectionBreaks) {
  Begin();
  Live(absl::Seconds(10));
  FakeSink& sink = Start(Request());
  const std::string stopped = stream(0).request.prefill().address();
  reporting_[stopped == "p0:1" ? 0 : 1] = false;
  for (int i = 0; i < 9; ++i) {
    Live(absl::Milliseconds(200));
    stream(0).Say(internal::v1::DecodeResponse());  // the decode worker lives
  }
  EXPECT_TRUE(stream(0).cancelled);
  EXPECT_NE(stream(1).request.prefill().address(), stopped);
  stream(1).Finish("b");
  EXPECT_EQ(sink.choice().text(), "b");
}

TEST_F(PauseTest, AStoppedPrefillWorkerThatDidItsPartIsNotMissed) {
  FakeSink& sink = BeginWithOneToken();
  stream(0).SayTokens("b");
  reporting_[stream(0).request.prefill().address() == "p0:1" ? 0 : 1] = false;
  for (int i = 0; i < 20; ++i) {
    Live(absl::Milliseconds(200));
    stream(0).SayTokens("b");
  }
  EXPECT_FALSE(stream(0).cancelled);
  EXPECT_FALSE(sink.ended());
}

}  // namespace
}  // namespace baton::router
