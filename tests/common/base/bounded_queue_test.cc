#include "common/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace baton {
namespace {

TEST(BoundedQueueTest, RefusesBeyondItsBoundAndLeavesTheItem) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(**queue.TryPop(), 1);
  EXPECT_TRUE(queue.TryPush(std::move(second)));
}

TEST(BoundedQueueTest, CloseWakesWaitersAndDrains) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.TryPush(7));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(8));
  EXPECT_EQ(queue.Pop(), 7);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, EveryItemIsTakenOnce) {
  BoundedQueue<int> queue(3);
  std::atomic<int> sum{0};
  std::vector<std::thread> consumers;
  for (int i = 0; i < 3; ++i) {
    consumers.emplace_back([&] {
      while (std::optional<int> item = queue.Pop()) sum += *item;
    });
  }
  for (int i = 1; i <= 1000; ++i) {
    while (!queue.TryPush(int{i})) std::this_thread::yield();
  }
  queue.Close();
  for (std::thread& consumer : consumers) consumer.join();
  EXPECT_EQ(sum, 1000 * 1001 / 2);
}

}  // namespace
}  // namespace baton
