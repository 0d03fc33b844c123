#include "common/base/awake_clock.h"

#include <gtest/gtest.h>

#include <thread>

#include "tests/router/fake_clock.h"

namespace baton {
namespace {

class AwakeClockTest : public ::testing::Test {
 protected:
  void Run(absl::Duration time) { testing::RunFor(time, base_, clock_); }

  testing::FakeClock base_;
  AwakeClock clock_{base_, /*own_thread=*/false};
  const absl::Duration start_ = clock_.SinceStart();
};

TEST_F(AwakeClockTest, ShowsTheTimeWhileTheProcessRuns) {
  EXPECT_EQ(start_, base_.SinceStart());
  Run(absl::Seconds(60));
  base_.Advance(absl::Milliseconds(120));  // between two beats, too
  EXPECT_EQ(clock_.SinceStart(), start_ + absl::Milliseconds(60'120));
  EXPECT_EQ(clock_.Now(), base_.Now());
  EXPECT_EQ(clock_.SincePause(), absl::InfiniteDuration());
}

TEST_F(AwakeClockTest, APauseCountsForNoMoreThanALateBeatBeforeAndAfterTheBeat) {
  Run(absl::Seconds(1));
  const absl::Duration before = clock_.SinceStart();
  base_.Advance(absl::Seconds(8));
  EXPECT_EQ(clock_.SinceStart(), before + AwakeClock::kMostPerBeat);
  EXPECT_EQ(clock_.SincePause(), absl::ZeroDuration());
  clock_.Beat();
  EXPECT_EQ(clock_.SinceStart(), before + AwakeClock::kMostPerBeat);
  EXPECT_EQ(clock_.SincePause(), absl::ZeroDuration());
  Run(absl::Seconds(2));
  EXPECT_EQ(clock_.SinceStart(), before + AwakeClock::kMostPerBeat + absl::Seconds(2));
  EXPECT_EQ(clock_.SincePause(), absl::Seconds(2));
  EXPECT_EQ(clock_.Now(), base_.Now()) << "wall time goes on";
}

TEST_F(AwakeClockTest, ABusyMachinesLateBeatsAreNoPause) {
  for (int i = 0; i < 10; ++i) {
    base_.Advance(absl::Milliseconds(400));
    clock_.Beat();
  }
  EXPECT_EQ(clock_.SinceStart(), start_ + 10 * AwakeClock::kMostPerBeat);
  EXPECT_EQ(clock_.SincePause(), absl::InfiniteDuration());
}

TEST_F(AwakeClockTest, NeverRunsBackwards) {
  absl::Duration last = clock_.SinceStart();
  for (int i = 1; i < 2000; ++i) {
    base_.Advance(absl::Milliseconds(i * 7919 % 700));
    if (i % 3 == 0) clock_.Beat();
    EXPECT_GE(clock_.SinceStart(), last);
    last = clock_.SinceStart();
  }
}

// Without a beat the clock would stop after kMostPerBeat.
TEST(OwnThreadOfAwakeClock, BeatsUntilTheClockIsDestroyed) {
  AwakeClock clock(Clock::Real());
  const absl::Duration begin = clock.SinceStart();
  while (clock.SinceStart() < begin + 4 * AwakeClock::kMostPerBeat) {
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace baton
