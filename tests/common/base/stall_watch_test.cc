#include "common/base/stall_watch.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

constexpr absl::Duration kStallLimit = absl::Seconds(8);

class StallWatchTest : public ::testing::Test {
 protected:
  StallWatchTest() { watch_.Begin(now_); }
  bool LookAfter(absl::Duration time, bool moved, size_t bytes = 0) {
    now_ += time;
    return watch_.Look(now_, moved, bytes);
  }

  absl::Duration now_ = absl::Hours(1);
  StallWatch watch_{kStallLimit};
};

TEST_F(StallWatchTest, APeerThatTakesNothingIsStalledAfterTheLimit) {
  for (int i = 0; i < 7; ++i) EXPECT_FALSE(LookAfter(absl::Seconds(1), false)) << i;
  EXPECT_TRUE(LookAfter(absl::Seconds(1), false));
}

TEST_F(StallWatchTest, ASlowPeerIsNotHoweverLongItTakes) {
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 7; ++k) ASSERT_FALSE(LookAfter(absl::Seconds(1), false));
    ASSERT_FALSE(LookAfter(absl::Seconds(1), true));
  }
}

TEST_F(StallWatchTest, APauseOfThisProcessIsNotThePeers) {
  EXPECT_FALSE(LookAfter(absl::Hours(1), false));
  EXPECT_FALSE(LookAfter(absl::Milliseconds(50), true)) << "what it took meanwhile";
  // If the peer took nothing meanwhile, the pause counts as little as any other step.
  EXPECT_FALSE(LookAfter(absl::Hours(1), false));
  EXPECT_FALSE(LookAfter(absl::Hours(1), false));
  EXPECT_FALSE(LookAfter(absl::Hours(1), false));
  EXPECT_TRUE(LookAfter(absl::Hours(1), false));
}

TEST_F(StallWatchTest, ALargeWriteGetsTheLimitForEachOfItsParts) {
  for (int i = 0; i < 23; ++i) {
    ASSERT_FALSE(LookAfter(absl::Seconds(1), false, 2 * StallWatch::kBytesPerLimit)) << i;
  }
  EXPECT_TRUE(LookAfter(absl::Seconds(1), false, 2 * StallWatch::kBytesPerLimit));
}

TEST_F(StallWatchTest, TimeWithoutAWriteDoesNotCount) {
  for (int i = 0; i < 7; ++i) ASSERT_FALSE(LookAfter(absl::Seconds(1), false));
  now_ += absl::Seconds(5);
  watch_.Begin(now_);
  for (int i = 0; i < 7; ++i) ASSERT_FALSE(LookAfter(absl::Seconds(1), false));
  EXPECT_TRUE(LookAfter(absl::Seconds(1), false));
}

TEST_F(StallWatchTest, ThereAreEnoughLooksWithinTheLimit) {
  for (const int64_t ms : {100, 400, 8'000, 30'000}) {
    const StallWatch watch{absl::Milliseconds(ms)};
    EXPECT_LE(watch.period() * 4, absl::Milliseconds(ms));
    EXPECT_LE(watch.period(), absl::Seconds(1));
  }
}

}  // namespace
}  // namespace baton
