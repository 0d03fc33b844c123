#include "common/backend/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace baton::backend {
namespace {

TEST(ThreadPoolTest, EveryTaskOnceAndItsWritesVisible) {
  for (int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    std::vector<int> done;
    for (int loop = 0; loop < 3000; ++loop) {
      const int tasks = loop % 40;
      done.assign(tasks, 0);
      pool.Run(tasks, [&](int task, int thread) {
        ASSERT_LT(thread, threads);
        done[task] += loop + 1;
      });
      for (int value : done) ASSERT_EQ(value, loop + 1);
    }
  }
}

TEST(ThreadPoolTest, SleepersWake) {
  ThreadPool pool(3);
  for (int loop = 0; loop < 20; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> count{0};
    pool.Run(50, [&](int task, int thread) { ++count; });
    EXPECT_EQ(count, 50);
  }
}

}  // namespace
}  // namespace baton::backend
