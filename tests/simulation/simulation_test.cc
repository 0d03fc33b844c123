// The cluster under a simulated clock and network. A failing seed is run alone, with what the
// workers log, by  build/cpu-release/bin/baton-simulation --first SEED --seeds 1 --verbose
#include "tests/simulation/simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "common/base/log.h"
#include "tests/testing/seed.h"

namespace baton::simulation {
namespace {

// BATON_SIMULATION_SEEDS changes how many seeds are run.
uint64_t SeedCount() {
  const char* text = std::getenv("BATON_SIMULATION_SEEDS");
  uint64_t count = 6'000;
  if (text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &count)) << text;
  }
  return count;
}

class SimulationTest : public ::testing::Test {
 protected:
  SimulationTest() {
    SetLogLevel(LogLevel::kError);
    SaySeedOnAbort();
  }
  ~SimulationTest() override { SetLogLevel(LogLevel::kInfo); }

  // Whether a planted bug shows in one of so many seeds.
  static bool IsFound(Bug bug, uint64_t count) {
    for (uint64_t seed = 1; seed <= count; ++seed) {
      if (Simulate(seed, bug).ok()) continue;
      RecordProperty("first_seed", static_cast<int>(seed));
      return true;
    }
    return false;
  }
};

TEST_F(SimulationTest, EverySeedKeepsThePromises) {
  const uint64_t count = SeedCount();
  Outcome total;
  int failures = 0;
  const uint64_t first = testing::TestSeed();
  for (uint64_t seed = first; seed < first + count && failures < 10; ++seed) {
    const Outcome outcome = Simulate(seed);
    if (!outcome.ok()) ++failures;
    EXPECT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.failure;
    total.Add(outcome);
  }
  // What was promised was also put to the test.
  const auto least = [count](double each) { return static_cast<int64_t>(each * count); };
  const Clients::Counts& clients = total.clients;
  EXPECT_GT(clients.finished, least(10));
  EXPECT_GT(clients.cancelled, least(0.8));
  EXPECT_GT(clients.lost_routers, least(0.05));
  EXPECT_GT(clients.heartbeats, least(0.03));
  EXPECT_GT(total.resumed, least(0.25));
  EXPECT_GT(total.preemptions, least(1));
  EXPECT_GT(total.accepted_drafts, least(10));
  for (const char* reason :
       {"NO_WORKER", "QUEUE_FULL", "RETRY_BUDGET_EXHAUSTED", "TENANT_LIMIT", "TOKENIZER_QUEUE_FULL",
        "TOO_MANY_PROMPT_TOKENS", "TOO_MANY_REQUESTS", "WORKER_EXPIRED", "WORKER_LOST"}) {
    EXPECT_GT(total.failed_by_reason[reason], 0) << reason;
  }
  // Most of what failed can never fit (searches in tiny pools), had a short deadline or a client
  // that does not ask again.
  EXPECT_LT(clients.failed, least(1.7));
  EXPECT_LT(clients.failed - clients.never_fit - clients.late, least(0.7));
  // Of answers that have begun, hardly any ends before its end, storms included.
  EXPECT_LT(clients.cut, least(0.03));
}

TEST_F(SimulationTest, EqualSeedsGiveEqualHistories) {
  const uint64_t begin = testing::TestSeed();
  for (uint64_t seed = begin; seed < begin + 100; ++seed) {
    const Outcome first = Simulate(seed);
    const Outcome second = Simulate(seed);
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
    EXPECT_EQ(first.time, second.time) << "seed " << seed;
    EXPECT_EQ(first.clients.tokens, second.clients.tokens) << "seed " << seed;
    EXPECT_EQ(first.clients.calls, second.clients.calls) << "seed " << seed;
    EXPECT_EQ(first.failed_by_reason, second.failed_by_reason) << "seed " << seed;
    EXPECT_EQ(first.resumed, second.resumed) << "seed " << seed;
    EXPECT_EQ(first.preemptions, second.preemptions) << "seed " << seed;
    EXPECT_EQ(first.accepted_drafts, second.accepted_drafts) << "seed " << seed;
  }
}

// The proof that it can fail: each of these is found.

TEST_F(SimulationTest, ACopyThatCopiesNothingIsFound) {
  EXPECT_TRUE(IsFound(Bug::kCopiesNothing, 300));
}

TEST_F(SimulationTest, SnapshotsThatAreNotStoredAreFound) {
  EXPECT_TRUE(IsFound(Bug::kSnapshotsUnstored, 300));
}

TEST_F(SimulationTest, DraftsBelievedUncheckedAreFound) {
  EXPECT_TRUE(IsFound(Bug::kDraftsBelieved, 300));
}

TEST_F(SimulationTest, AStateThatGoesOnOverDraftsIsFound) {
  EXPECT_TRUE(IsFound(Bug::kDraftsInState, 300));
}

TEST_F(SimulationTest, FramesBelievedUncheckedAreFound) {
  EXPECT_TRUE(IsFound(Bug::kChecksumSkipped, 300));
}

TEST_F(SimulationTest, BlocksReusedWhileTheyAreSentAreFound) {
  EXPECT_TRUE(IsFound(Bug::kPinsIgnored, 300));
}

TEST_F(SimulationTest, BlocksNeverGivenBackAreFound) { EXPECT_TRUE(IsFound(Bug::kPinsLeaked, 30)); }

TEST_F(SimulationTest, ATransferWhoseEndIsLostIsFound) {
  EXPECT_TRUE(IsFound(Bug::kCommitUnheard, 300));
}

// And those of routers.

TEST_F(SimulationTest, ATokenLostInAResumptionIsFound) {
  EXPECT_TRUE(IsFound(Bug::kResumeLosesToken, 300));
}

TEST_F(SimulationTest, AResumptionThatBeginsAnewIsFound) {
  EXPECT_TRUE(IsFound(Bug::kResumeRestarts, 300));
}

TEST_F(SimulationTest, AMessageTakenTwiceIsFound) { EXPECT_TRUE(IsFound(Bug::kMessageTwice, 30)); }

TEST_F(SimulationTest, ADeltaSentTwiceIsFound) { EXPECT_TRUE(IsFound(Bug::kDeltaTwice, 30)); }

TEST_F(SimulationTest, AStopStringThatLeaksIsFound) {
  EXPECT_TRUE(IsFound(Bug::kStopStringLeaks, 30));
}

TEST_F(SimulationTest, AHeartbeatThatSaysMoreIsFound) {
  EXPECT_TRUE(IsFound(Bug::kHeartbeatHasText, 300));
}

TEST_F(SimulationTest, AChargeThatIsNeverGivenBackIsFound) {
  EXPECT_TRUE(IsFound(Bug::kChargeNotGivenBack, 300));
}

TEST_F(SimulationTest, AnAdmissionTicketThatLeaksIsFound) {
  EXPECT_TRUE(IsFound(Bug::kTicketLeaked, 30));
}

TEST_F(SimulationTest, RoomHeldForAContinuationThatHasEndedIsFound) {
  EXPECT_TRUE(IsFound(Bug::kHoldLeaked, 300));
}

TEST_F(SimulationTest, AFailureThatLooksLikeAFinishIsFound) {
  EXPECT_TRUE(IsFound(Bug::kFailureAsFinish, 300));
}

// A seed that fails is kept here under a name that says what it found, beside a unit test of the
// cause: what a seed means changes with what the simulation draws.

// decode_worker/loop_test.cc WhatIsCachedAfterAPreemptionIsNotCountedAsCachedOfThePrompt
TEST_F(SimulationTest, NoMoreIsCachedOfAPromptThanItHas) {
  const Outcome outcome = Simulate(14491);
  EXPECT_TRUE(outcome.ok()) << outcome.failure;
}

}  // namespace
}  // namespace baton::simulation
