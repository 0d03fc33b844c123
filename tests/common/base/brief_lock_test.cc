#include "common/base/brief_lock.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"

namespace baton {
namespace {

TEST(BriefLockTest, WritersAreAloneAndReadersSeeWhatTheyWrote) {
  absl::Mutex mutex;
  int first = 0, second = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 2000; ++turn) {
        {
          BriefLock lock(&mutex);
          ++first, ++second;
        }
        BriefReaderLock lock(&mutex);
        EXPECT_EQ(first, second);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(first, 8000);
}

// Longer than it tries.
TEST(BriefLockTest, WaitsForALockThatIsHeldForLong) {
  absl::Mutex mutex;
  absl::Notification held;
  std::optional<std::thread> waiting;
  bool locked = false;
  {
    BriefReaderLock lock(&mutex);
    waiting.emplace([&] {
      EXPECT_FALSE(mutex.TryLock());
      held.Notify();
      BriefLock writer(&mutex);
      locked = true;
    });
    held.WaitForNotification();
    EXPECT_FALSE(locked);
  }
  waiting->join();
  EXPECT_TRUE(locked);
}

}  // namespace
}  // namespace baton
