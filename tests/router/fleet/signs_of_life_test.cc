#include "router/fleet/signs_of_life.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace baton::router {
namespace {

class SignsOfLifeTest : public ::testing::Test {
 protected:
  void Hear(absl::Duration after) { signs_.Heard(now_ += after); }
  void HearMany(int count, absl::Duration apart) {
    for (int i = 0; i < count; ++i) Hear(apart);
  }
  bool SuspectAfter(absl::Duration silence) const {
    return signs_.Suspicion(now_ + silence) >= SignsOfLife::kSuspicious;
  }

  absl::Duration now_ = absl::Seconds(1000);
  SignsOfLife signs_;
};

TEST_F(SignsOfLifeTest, RegularSignsMakeASilenceOfAboutOneAndAHalfSecondsSuspicious) {
  signs_.Restart(now_);
  HearMany(100, absl::Milliseconds(250));
  EXPECT_FALSE(SuspectAfter(absl::Milliseconds(1500)));
  EXPECT_TRUE(SuspectAfter(absl::Milliseconds(1540)));
  // A worker that runs reports far more often.
  HearMany(2000, absl::Milliseconds(20));
  EXPECT_FALSE(SuspectAfter(absl::Milliseconds(1350)));
  EXPECT_TRUE(SuspectAfter(absl::Milliseconds(1390)));
}

// φ by the definition: half of the signs are later than the mean and the pause, and a sign that is
// five deviations later is one of 3.5 million.
TEST_F(SignsOfLifeTest, SuspicionIsTheLogarithmOfAProbability) {
  signs_.Restart(now_);
  HearMany(100, absl::Milliseconds(250));
  EXPECT_NEAR(signs_.Suspicion(now_ + absl::Milliseconds(1250)), std::log10(2.0), 1e-6);
  EXPECT_NEAR(signs_.Suspicion(now_ + absl::Milliseconds(1500)), 6.5426, 1e-3);
  EXPECT_NEAR(signs_.Suspicion(now_), 0, 1e-6);
  EXPECT_EQ(signs_.Suspicion(now_ + absl::Hours(1)), std::numeric_limits<double>::infinity());
}

TEST_F(SignsOfLifeTest, APauseOfASecondIsNoAlarmHoweverOftenSignsCameBefore) {
  for (const absl::Duration apart : {absl::Milliseconds(20), absl::Milliseconds(250)}) {
    signs_.Restart(now_);
    HearMany(2000, apart);
    for (int pause = 0; pause < 20; ++pause) {
      EXPECT_FALSE(SuspectAfter(absl::Seconds(1) + apart)) << apart;
      Hear(absl::Seconds(1) + apart);
      HearMany(100, apart);
    }
  }
}

TEST_F(SignsOfLifeTest, WhereSignsSpreadASilenceMustBeLonger) {
  std::mt19937 random(1);
  std::uniform_int_distribution<int> apart_ms(100, 900);
  signs_.Restart(now_);
  for (int i = 0; i < 500; ++i) Hear(absl::Milliseconds(apart_ms(random)));
  EXPECT_FALSE(SuspectAfter(absl::Milliseconds(2300)));
  EXPECT_TRUE(SuspectAfter(absl::Milliseconds(3500)));
  // A shorter silence is suspicious again once signs come regularly.
  HearMany(600, absl::Milliseconds(250));
  EXPECT_TRUE(SuspectAfter(absl::Milliseconds(1600)));
}

TEST_F(SignsOfLifeTest, OneLongSilenceIsForgottenWithinAMinute) {
  signs_.Restart(now_);
  HearMany(100, absl::Milliseconds(250));
  Hear(absl::Seconds(600));
  HearMany(240, absl::Milliseconds(250));
  EXPECT_TRUE(SuspectAfter(absl::Seconds(2)));
}

TEST_F(SignsOfLifeTest, ANewProcessIsNotJudgedByTheOldOnesSigns) {
  signs_.Restart(now_);
  HearMany(100, absl::Milliseconds(250));
  signs_.Restart(now_);
  EXPECT_FALSE(SuspectAfter(absl::Hours(1)));
  HearMany(SignsOfLife::kFewestIntervals, absl::Seconds(1));  // as an older release reports
  EXPECT_FALSE(SuspectAfter(absl::Milliseconds(2200)));
  EXPECT_TRUE(SuspectAfter(absl::Milliseconds(2300)));
}

TEST_F(SignsOfLifeTest, ASignThatIsOlderThanTheLastChangesNothing) {
  signs_.Restart(now_);
  HearMany(100, absl::Milliseconds(250));
  signs_.Heard(now_ - absl::Milliseconds(120));
  EXPECT_EQ(signs_.heard_at(), now_);
}

}  // namespace
}  // namespace baton::router
