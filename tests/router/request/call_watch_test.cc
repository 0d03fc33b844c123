#include "router/request/call_watch.h"

#include <gtest/gtest.h>

#include <memory>

#include "absl/synchronization/notification.h"

namespace baton::router {
namespace {

struct CountingCall final : WatchedCall {
  void OnTick() override {
    if (++ticks == 1) ticked.Notify();
  }
  int ticks = 0;
  absl::Notification ticked;
};

TEST(CallWatch, WithoutAThreadItsOwnerTurnsItAndCallsThatAreGoneAreLeftOut) {
  CallWatch watch(absl::ZeroDuration(), /*own_thread=*/false);
  auto first = std::make_shared<CountingCall>();
  auto second = std::make_shared<CountingCall>();
  watch.Add(first);
  watch.Add(second);
  EXPECT_EQ(first->ticks, 0);
  watch.Turn();
  second.reset();
  watch.Turn();
  EXPECT_EQ(first->ticks, 2);
}

TEST(CallWatch, ItsThreadTicksWithoutBeingAsked) {
  auto call = std::make_shared<CountingCall>();
  CallWatch watch(absl::Milliseconds(1));
  watch.Add(call);
  EXPECT_TRUE(call->ticked.WaitForNotificationWithTimeout(absl::Seconds(60)));
  watch.Stop();
}

}  // namespace
}  // namespace baton::router
