#include "router/request/work_pool.h"

#include <gtest/gtest.h>

namespace baton::router {
namespace {

TEST(WorkPool, WithoutThreadsItsOwnerRunsWhatIsQueued) {
  WorkPool pool(/*thread_count=*/0, /*queue_capacity=*/2);
  int done = 0;
  const auto work = [&done] { ++done; };
  EXPECT_TRUE(pool.TryRun(work));
  EXPECT_TRUE(pool.TryRun(work));
  EXPECT_FALSE(pool.TryRun(work)) << "the queue is full";
  EXPECT_EQ(done, 0);
  pool.Turn();
  EXPECT_EQ(done, 2);
  EXPECT_TRUE(pool.TryRun(work));
  pool.Stop();
  EXPECT_FALSE(pool.TryRun(work));
}

TEST(WorkPool, StopFinishesWhatIsQueued) {
  int done = 0;
  WorkPool pool(/*thread_count=*/1, /*queue_capacity=*/100);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(pool.TryRun([&done] { ++done; }));
  pool.Stop();
  EXPECT_EQ(done, 50);
}

TEST(WorkPool, ItKnowsItsThreads) {
  WorkPool pool(/*thread_count=*/1, /*queue_capacity=*/1);
  WorkPool other(/*thread_count=*/1, /*queue_capacity=*/1);
  EXPECT_FALSE(pool.OwnsThisThread());
  bool own = false, foreign = true;
  EXPECT_TRUE(pool.TryRun([&] {
    own = pool.OwnsThisThread();
    foreign = other.OwnsThisThread();
  }));
  pool.Stop();
  EXPECT_TRUE(own);
  EXPECT_FALSE(foreign);
}

}  // namespace
}  // namespace baton::router
