#include "common/transfer/link_schedule.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/router/fake_clock.h"

namespace baton::transfer {
namespace {

constexpr int64_t kSmall = 2'400'000;    // 200 tokens of 12 KiB
constexpr int64_t kLarge = 400'000'000;  // 32k
constexpr absl::Time kNever = absl::InfiniteFuture();

class LinkScheduleTest : public ::testing::Test {
 protected:
  LinkSchedule::Transfer Join(int64_t bytes, absl::Time deadline = kNever,
                              const std::string& link = "a") {
    return schedule_.Join(link, bytes, deadline);
  }
  bool MaySend(LinkSchedule::Transfer transfer) {
    return schedule_.MaySend(transfer, [this, transfer] { resumed_ += std::to_string(transfer); });
  }
  void Pause(LinkSchedule::Transfer transfer) {
    if (const auto next = schedule_.Pause(transfer)) next();
  }

  testing::FakeClock clock_;
  LinkSchedule schedule_{clock_};
  std::string resumed_;
};

TEST_F(LinkScheduleTest, ASmallTransferPassesALargeOneThatIsUnderWay) {
  const auto large = Join(kLarge);
  EXPECT_TRUE(MaySend(large));
  clock_.Advance(absl::Seconds(30));
  const auto small = Join(kSmall);
  EXPECT_TRUE(MaySend(small));
  EXPECT_FALSE(MaySend(large));
  EXPECT_TRUE(MaySend(small));
  EXPECT_EQ(resumed_, "");
  Pause(small);
  EXPECT_EQ(resumed_, "1");
  EXPECT_TRUE(MaySend(large));
  schedule_.Leave(small);
  EXPECT_EQ(resumed_, "1") << "it did not wait";
  schedule_.Leave(large);
}

TEST_F(LinkScheduleTest, ALargeTransferIsNotHeldBackForEver) {
  const auto large = Join(kLarge);
  clock_.Advance(absl::Seconds(39));
  const auto before = Join(kSmall);
  clock_.Advance(absl::Seconds(1));
  const auto after = Join(kSmall);
  EXPECT_TRUE(MaySend(before));
  EXPECT_FALSE(MaySend(large));
  EXPECT_FALSE(MaySend(after));
  schedule_.Leave(before);
  EXPECT_EQ(resumed_, "1");
  EXPECT_TRUE(MaySend(large));
  schedule_.Leave(large);
  EXPECT_EQ(resumed_, "13");
  schedule_.Leave(after);
}

TEST_F(LinkScheduleTest, ACallersDeadlineCounts) {
  const auto large = Join(kLarge, clock_.Now() + absl::Milliseconds(100));
  const auto small = Join(kSmall);
  EXPECT_TRUE(MaySend(small));
  EXPECT_TRUE(MaySend(large));
  EXPECT_FALSE(MaySend(small));
  schedule_.Leave(large);
  schedule_.Leave(small);
}

TEST_F(LinkScheduleTest, LinksAreIndependentAndEqualsGoInTheOrderOfTheirArrival) {
  const auto first = Join(kSmall), second = Join(kSmall), elsewhere = Join(kLarge, kNever, "b");
  EXPECT_TRUE(MaySend(second));
  EXPECT_TRUE(MaySend(elsewhere));
  EXPECT_TRUE(MaySend(first));
  EXPECT_FALSE(MaySend(second));
  Pause(elsewhere);
  EXPECT_EQ(resumed_, "");
  schedule_.Leave(first);
  EXPECT_EQ(resumed_, "2");
  schedule_.Leave(second);
  schedule_.Leave(elsewhere);
}

TEST_F(LinkScheduleTest, OneThatGivesUpWhileItWaitsIsNotResumed) {
  const auto first = Join(kSmall), second = Join(2 * kSmall), third = Join(3 * kSmall);
  EXPECT_TRUE(MaySend(first));
  EXPECT_FALSE(MaySend(second));
  EXPECT_FALSE(MaySend(third));
  schedule_.Leave(second);
  EXPECT_EQ(resumed_, "");
  Pause(first);
  EXPECT_EQ(resumed_, "3");
  // It was resumed, and finds that it has nothing left: the next one must not wait for it.
  EXPECT_TRUE(MaySend(first));
  Pause(third);
  schedule_.Leave(third);
  schedule_.Leave(first);
}

}  // namespace
}  // namespace baton::transfer
