#include "router/retry_budget.h"

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

}  // namespace
}  // namespace baton::router
