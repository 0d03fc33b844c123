#include "router/request/call_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

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

// A request may begin while the others are looked at, and must not come before older ones.
TEST(CallWatch, CallsThatATurnAddsAreTickedByTheNextOneBehindTheOlder) {
  struct AddingCall final : WatchedCall {
    void OnTick() override {
      order->push_back(this);
      if (next != nullptr) watch->Add(std::exchange(next, nullptr));
    }
    CallWatch* watch = nullptr;
    std::vector<AddingCall*>* order = nullptr;
    std::shared_ptr<AddingCall> next;
  };
  CallWatch watch(absl::ZeroDuration(), /*own_thread=*/false);
  std::vector<AddingCall*> order;
  std::vector<std::shared_ptr<AddingCall>> calls;
  for (int i = 0; i < 3; ++i) {
    calls.push_back(std::make_shared<AddingCall>());
    calls[i]->watch = &watch;
    calls[i]->order = &order;
  }
  calls[0]->next = calls[2];
  watch.Add(calls[0]);
  watch.Add(calls[1]);
  watch.Turn();
  EXPECT_EQ(order, (std::vector<AddingCall*>{calls[0].get(), calls[1].get()}));
  order.clear();
  watch.Turn();
  EXPECT_EQ(order, (std::vector<AddingCall*>{calls[0].get(), calls[1].get(), calls[2].get()}));
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
