#include "router/request/retry_budget.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

TEST(RetryBudgetTest, AQuietClusterHasItsReserveAndNoMore) {
  RetryBudget budget({.share = 0.1, .reserve = 3, .capacity = 10});
  EXPECT_TRUE(budget.TryTake(1));
  EXPECT_TRUE(budget.TryTake(2));
  EXPECT_FALSE(budget.TryTake(1));
}

TEST(RetryBudgetTest, TenRequestsPayForOneRetry) {
  RetryBudget budget({.share = 0.1, .reserve = 0, .capacity = 10});
  for (int i = 0; i < 9; ++i) budget.OnRequest(1);
  EXPECT_FALSE(budget.TryTake(1));
  budget.OnRequest(1);
  EXPECT_TRUE(budget.TryTake(1));
  EXPECT_FALSE(budget.TryTake(1));
}

TEST(RetryBudgetTest, InTheLongRunRetriesAreATenthOfTheLoadHoweverManyAreWanted) {
  RetryBudget budget({.share = 0.1, .reserve = 32, .capacity = 128});
  int retries = 0;
  for (int i = 0; i < 10'000; ++i) {
    budget.OnRequest(1);
    for (int attempt = 0; attempt < 3; ++attempt) retries += budget.TryTake(1) ? 1 : 0;
  }
  EXPECT_GE(retries, 1000);
  EXPECT_LE(retries, 1000 + 32);
}

TEST(RetryBudgetTest, SavingsHaveABound) {
  RetryBudget budget({.share = 0.5, .reserve = 0, .capacity = 4});
  for (int i = 0; i < 1000; ++i) budget.OnRequest(1);
  EXPECT_TRUE(budget.TryTake(4));
  EXPECT_FALSE(budget.TryTake(1));
}

TEST(RetryBudgetTest, SeveralSequencesAreAllOrNothing) {
  RetryBudget budget({.share = 0.1, .reserve = 3, .capacity = 10});
  EXPECT_FALSE(budget.TryTake(4));
  EXPECT_TRUE(budget.TryTake(3));
  budget.GiveBack(3);
  EXPECT_TRUE(budget.TryTake(3));
  budget.OnRequest(20);
  EXPECT_TRUE(budget.TryTake(2));
  EXPECT_FALSE(budget.TryTake(1));
}

constexpr Incarnation kDead = {3, 77};
constexpr Incarnation kRestarted = {3, 78};
constexpr Incarnation kOtherIncarnation = {4, 77};

TEST(RetryBudgetTest, ADeathGivesBackWhatItWasChargedOnceAndNothingElse) {
  RetryBudget budget({.share = 0, .reserve = 10, .capacity = 10});
  const absl::Duration now = absl::Seconds(100);
  ASSERT_TRUE(budget.TryTake(6));
  budget.Charged(1, {kDead}, now);
  budget.Charged(2, {kOtherIncarnation, kDead}, now);
  budget.Charged(3, {kOtherIncarnation}, now);
  EXPECT_EQ(budget.OnDeath(kRestarted, now), 0);
  EXPECT_EQ(budget.level(), 4);
  EXPECT_EQ(budget.OnDeath(kDead, now), 3);
  EXPECT_EQ(budget.level(), 7);
  EXPECT_EQ(budget.OnDeath(kDead, now), 0) << "told twice";
  EXPECT_EQ(budget.OnDeath(kOtherIncarnation, now), 3);
  EXPECT_EQ(budget.level(), 10);
}

TEST(RetryBudgetTest, AProofThatComesTooLateProvesNothing) {
  RetryBudget budget({.share = 0, .reserve = 10, .capacity = 10});
  const absl::Duration now = absl::Seconds(100);
  ASSERT_TRUE(budget.TryTake(3));
  budget.Charged(1, {kDead}, now);
  budget.Charged(2, {kDead}, now + absl::Seconds(5));
  EXPECT_EQ(budget.OnDeath(kDead, now + kProofWithin + absl::Milliseconds(1)), 2);
  EXPECT_EQ(budget.level(), 9);
}

TEST(RetryBudgetTest, WhatIsGivenBackIsNeverMoreThanTheCapacity) {
  RetryBudget budget({.share = 1, .reserve = 4, .capacity = 4});
  ASSERT_TRUE(budget.TryTake(3));
  budget.Charged(3, {kDead}, absl::Seconds(1));
  budget.OnRequest(2);
  EXPECT_EQ(budget.OnDeath(kDead, absl::Seconds(1)), 3);
  EXPECT_EQ(budget.level(), 4);
}

TEST(RetryBudgetTest, ItRemembersABoundedNumberOfCharges) {
  RetryBudget budget({.share = 0, .reserve = 0, .capacity = 1e6});
  const int charges = static_cast<int>(RetryBudget::kMaxCharges) + 1000;
  for (int i = 0; i < charges; ++i) budget.Charged(1, {kDead}, absl::Seconds(1));
  EXPECT_EQ(budget.OnDeath(kDead, absl::Seconds(1)), RetryBudget::kMaxCharges);
}

}  // namespace
}  // namespace baton::router
