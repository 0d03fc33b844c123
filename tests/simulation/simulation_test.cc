// The cluster under a simulated clock and network. A failing seed is run alone, with what the
// workers log, by  build/cpu-release/bin/baton-simulation --first SEED --seeds 1 --verbose
#include "tests/simulation/simulation.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "common/base/log.h"

namespace baton::simulation {
namespace {

// BATON_SIMULATION_SEEDS changes how many seeds are run.
uint64_t SeedCount() {
  const char* text = std::getenv("BATON_SIMULATION_SEEDS");
  uint64_t count = 10'000;
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

  // How many of the seeds a planted bug shows in.
  static int SeedsThatFail(Bug bug, uint64_t count) {
    int failures = 0;
    for (uint64_t seed = 1; seed <= count; ++seed) failures += !Simulate(seed, bug).ok();
    return failures;
  }
};

TEST_F(SimulationTest, EverySeedKeepsThePromises) {
  const uint64_t count = SeedCount();
  Outcome total;
  int failures = 0;
  for (uint64_t seed = 1; seed <= count && failures < 10; ++seed) {
    const Outcome outcome = Simulate(seed);
    if (!outcome.ok()) ++failures;
    EXPECT_TRUE(outcome.ok()) << "seed " << seed << ": " << outcome.failure;
    total.finished += outcome.finished;
    total.failed += outcome.failed;
    total.cancelled += outcome.cancelled;
    total.resumed += outcome.resumed;
    total.preemptions += outcome.preemptions;
  }
  // What was promised was also put to the test.
  const auto least = [count](double each) { return static_cast<int64_t>(each * count); };
  EXPECT_GT(total.finished, least(10));
  EXPECT_GT(total.cancelled, least(0.8));
  EXPECT_GT(total.resumed, least(0.5));
  EXPECT_GT(total.preemptions, least(1));
  // Most of what failed can never fit (searches in tiny pools); the rest had a short deadline.
  EXPECT_LT(total.failed, least(1.5));
}

TEST_F(SimulationTest, EqualSeedsGiveEqualHistories) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const Outcome first = Simulate(seed);
    const Outcome second = Simulate(seed);
    EXPECT_EQ(first.events, second.events) << "seed " << seed;
    EXPECT_EQ(first.time, second.time) << "seed " << seed;
    EXPECT_EQ(first.tokens, second.tokens) << "seed " << seed;
    EXPECT_EQ(first.resumed, second.resumed) << "seed " << seed;
    EXPECT_EQ(first.preemptions, second.preemptions) << "seed " << seed;
  }
}

// The proof that it can fail: each of these is found.

TEST_F(SimulationTest, ACopyThatCopiesNothingIsFound) {
  EXPECT_GT(SeedsThatFail(Bug::kCopiesNothing, 300), 0);
}

TEST_F(SimulationTest, FramesBelievedUncheckedAreFound) {
  EXPECT_GT(SeedsThatFail(Bug::kChecksumSkipped, 300), 0);
}

TEST_F(SimulationTest, BlocksReusedWhileTheyAreSentAreFound) {
  EXPECT_GT(SeedsThatFail(Bug::kPinsIgnored, 300), 0);
}

TEST_F(SimulationTest, BlocksNeverGivenBackAreFound) {
  EXPECT_GT(SeedsThatFail(Bug::kPinsLeaked, 30), 0);
}

TEST_F(SimulationTest, ATransferWhoseEndIsLostIsFound) {
  EXPECT_GT(SeedsThatFail(Bug::kCommitUnheard, 300), 0);
}

TEST_F(SimulationTest, ATokenLostInAResumptionIsFound) {
  EXPECT_GT(SeedsThatFail(Bug::kResumeLosesToken, 300), 0);
}

// A seed that fails is kept here under a name that says what it found, beside a unit test of the
// cause: what a seed means changes with what the simulation draws.
// SEEDS

}  // namespace
}  // namespace baton::simulation
