#include "router/routing/pair_health.h"

#include <gtest/gtest.h>

#include "tests/router/fake_clock.h"

namespace baton::router {
namespace {

constexpr int kP0 = 0, kP1 = 1, kD0 = 2, kD1 = 3;

class PairHealthTest : public ::testing::Test {
 protected:
  bool Usable(int prefill, int decode) const {
    return health_.WorkerUsable(prefill) && health_.WorkerUsable(decode) &&
           health_.PairUsable(prefill, decode);
  }
  testing::FakeClock clock_;
  PairHealth health_{clock_};
};

TEST_F(PairHealthTest, TwoFailuresMakeAPairAvoidedAndNoOther) {
  health_.OnPairFailed(kP0, kD0);
  EXPECT_TRUE(Usable(kP0, kD0));
  health_.OnPairFailed(kP0, kD0);
  EXPECT_FALSE(Usable(kP0, kD0));
  EXPECT_TRUE(Usable(kP0, kD1));
  EXPECT_TRUE(Usable(kP1, kD0));
  EXPECT_TRUE(Usable(kP1, kD1));
}

TEST_F(PairHealthTest, ASuccessBetweenThemForgivesTheFirst) {
  health_.OnPairFailed(kP0, kD0);
  health_.OnPairWorked(kP0, kD0);
  health_.OnPairFailed(kP0, kD0);
  EXPECT_TRUE(Usable(kP0, kD0));
}

TEST_F(PairHealthTest, ADecodeWorkerThatDidItAloneShowsNothingOfThePair) {
  health_.OnPairFailed(kP0, kD0);
  health_.OnPairWorked(kD0, kD0);
  health_.OnPairFailed(kP0, kD0);
  EXPECT_FALSE(health_.PairUsable(kP0, kD0));
  health_.OnPairFailed(kP1, kD0);
  EXPECT_FALSE(health_.WorkerUsable(kD0)) << "which reaches nobody";
  health_.OnPairWorked(kD0, kD0);
  EXPECT_TRUE(health_.WorkerUsable(kD0)) << "but answers";
  EXPECT_FALSE(health_.PairUsable(kP0, kD0));
}

TEST_F(PairHealthTest, FailuresFarApartAreNotInARow) {
  health_.OnPairFailed(kP0, kD0);
  clock_.Advance(kFailureMemory + absl::Seconds(1));
  health_.OnPairFailed(kP0, kD0);
  EXPECT_TRUE(Usable(kP0, kD0));
}

TEST_F(PairHealthTest, AWorkerThatFailsWithSeveralPartnersIsAvoidedAndTheyAreNot) {
  health_.OnPairFailed(kP0, kD0);
  health_.OnPairFailed(kP0, kD1);
  EXPECT_FALSE(health_.WorkerUsable(kP0));
  EXPECT_TRUE(Usable(kP1, kD0));
  EXPECT_TRUE(Usable(kP1, kD1));
}

TEST_F(PairHealthTest, AWorkerThatWorksWithAnotherIsNotToBlame) {
  health_.OnPairFailed(kP0, kD0);
  health_.OnPairFailed(kP0, kD0);
  health_.OnPairWorked(kP0, kD1);
  health_.OnPairFailed(kP1, kD0);
  health_.OnPairWorked(kP1, kD0);
  EXPECT_TRUE(health_.WorkerUsable(kP0));
  EXPECT_TRUE(health_.WorkerUsable(kD0));
  EXPECT_FALSE(health_.PairUsable(kP0, kD0)) << "of which nothing better is known";
}

TEST_F(PairHealthTest, AWorkerThatDoesNotAnswerIsAvoidedWhateverItsPartner) {
  health_.OnWorkerFailed(kD0);
  EXPECT_TRUE(health_.WorkerUsable(kD0));
  health_.OnPairFailed(kD0, kD0);
  EXPECT_FALSE(health_.WorkerUsable(kD0));
}

TEST_F(PairHealthTest, AfterAWhileOneRequestTriesAndTheOthersWaitForIt) {
  health_.OnPairFailed(kP0, kD0);
  health_.OnPairFailed(kP0, kD0);
  clock_.Advance(kFirstAvoidance - absl::Milliseconds(1));
  EXPECT_FALSE(Usable(kP0, kD0));
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(Usable(kP0, kD0));
  health_.OnChosen(kP0, kD0);
  EXPECT_FALSE(Usable(kP0, kD0)) << "one is enough to see";
  health_.OnPairWorked(kP0, kD0);
  EXPECT_TRUE(Usable(kP0, kD0));
}

TEST_F(PairHealthTest, EachFailedTryDoublesTheWaitUpToABound) {
  health_.OnPairFailed(kP0, kD0);
  health_.OnPairFailed(kP0, kD0);
  absl::Duration expected = kFirstAvoidance;
  for (int i = 0; i < 8; ++i) {
    absl::Duration waited;
    while (!Usable(kP0, kD0)) {
      clock_.Advance(absl::Milliseconds(100));
      waited += absl::Milliseconds(100);
    }
    EXPECT_EQ(waited, expected);
    health_.OnChosen(kP0, kD0);
    clock_.Advance(absl::Milliseconds(700));  // which a try takes to fail
    health_.OnPairFailed(kP0, kD0);
    expected = std::min(2 * expected, kLongestAvoidance);
  }
  EXPECT_EQ(expected, kLongestAvoidance);
}

TEST_F(PairHealthTest, OneEventThatFailsManyStreamsIsOneFailedTry) {
  for (int stream = 0; stream < 6; ++stream) {
    health_.OnWorkerFailed(kD0);
    health_.OnPairFailed(kP0, kD1);
    clock_.Advance(absl::Milliseconds(100));
  }
  clock_.Advance(kFirstAvoidance - absl::Milliseconds(500));  // since the second failure
  EXPECT_TRUE(health_.WorkerUsable(kD0));
  EXPECT_TRUE(health_.PairUsable(kP0, kD1));
}

TEST_F(PairHealthTest, WhatMustBeUsedWhileItIsAvoidedIsNotAvoidedForLonger) {
  for (int i = 0; i < 2; ++i) health_.OnWorkerFailed(kD0);
  for (int i = 0; i < 5; ++i) {
    health_.OnChosen(kP0, kD0);
    health_.OnWorkerFailed(kD0);
  }
  clock_.Advance(kFirstAvoidance);
  EXPECT_TRUE(health_.WorkerUsable(kD0));
  health_.OnChosen(kP0, kD0);
  health_.OnWorkerFailed(kD0);
  clock_.Advance(2 * kFirstAvoidance - absl::Milliseconds(1));
  EXPECT_FALSE(health_.WorkerUsable(kD0)) << "this try did count";
}

TEST_F(PairHealthTest, ATryWhoseEndNobodyHearsOfIsFollowedByAnother) {
  health_.OnPairFailed(kP0, kD0);
  health_.OnPairFailed(kP0, kD0);
  clock_.Advance(kFirstAvoidance);
  health_.OnChosen(kP0, kD0);
  clock_.Advance(kTryMayTake - absl::Milliseconds(1));
  EXPECT_FALSE(Usable(kP0, kD0)) << "it may still be held: another one would be, too";
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(Usable(kP0, kD0));
}

TEST_F(PairHealthTest, ANewProcessAtAnAddressStartsClean) {
  for (int i = 0; i < 2; ++i) {
    health_.OnPairFailed(kP0, kD0);
    health_.OnPairFailed(kP0, kD1);
  }
  health_.Forget(kP0);
  EXPECT_TRUE(Usable(kP0, kD0));
  EXPECT_TRUE(Usable(kP0, kD1));
  health_.OnPairFailed(kP1, kD0);
  EXPECT_TRUE(health_.WorkerUsable(kD0)) << "its failures with the old one are not its own";
}

}  // namespace
}  // namespace baton::router
