#include "common/worker/mid_step_mailbox.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace baton::worker {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(20);

// Posters, steps and the loop run at the same time, and no lock guards what the messages write.
TEST(MidStepMailboxTest, EachMessageIsHandledOnceAndInOrderAndAloneOutsideOfSteps) {
  constexpr int kPosters = 3, kMessages = 2000;
  const auto mailbox = std::make_shared<Mailbox>();
  MidStepMailbox messages(mailbox, /*own_thread=*/true);
  std::vector<std::vector<int>> handled(kPosters);
  int count = 0, mid_step_count = 0;
  std::vector<std::thread> posters;
  for (int poster = 0; poster < kPosters; ++poster) {
    posters.emplace_back([&, poster] {
      for (int i = 0; i < kMessages; ++i) {
        ASSERT_TRUE(messages.Post([&, poster, i](bool mid_step) {
          handled[static_cast<size_t>(poster)].push_back(i);
          ++count;
          mid_step_count += mid_step ? 1 : 0;
        }));
      }
    });
  }
  int steps = 0;
  while (count < kPosters * kMessages) {
    steps += messages.During([] {
      std::this_thread::yield();
      return 1;
    });
    const int before = count;
    messages.TakeHandled();
    mailbox->RunPending(absl::ZeroDuration());
    EXPECT_GE(count, before);
  }
  for (std::thread& poster : posters) poster.join();
  std::vector<int> all(kMessages);
  for (int i = 0; i < kMessages; ++i) all[static_cast<size_t>(i)] = i;
  for (const std::vector<int>& of_poster : handled) EXPECT_EQ(of_poster, all);
  EXPECT_EQ(count, kPosters * kMessages);
  EXPECT_LE(mid_step_count, count);
  mailbox->Close();
  EXPECT_FALSE(messages.Post([](bool) { FAIL() << "a closed mailbox takes no message"; }));
  messages.Stop();
}

TEST(MidStepMailboxTest, AMessageOfAStepIsHandledBeforeItsEnd) {
  const auto mailbox = std::make_shared<Mailbox>();
  MidStepMailbox messages(mailbox, /*own_thread=*/true);
  int handled = 0;
  for (int i = 0; i < 3; ++i) {
    messages.During([&] {
      absl::Notification done;
      messages.Post([&](bool mid_step) {
        EXPECT_TRUE(mid_step);
        ++handled;
        done.Notify();
      });
      return done.WaitForNotificationWithTimeout(kPatience);
    });
    EXPECT_EQ(handled, i + 1);
    EXPECT_TRUE(messages.TakeHandled());
    mailbox->RunPending(absl::ZeroDuration());
    EXPECT_EQ(handled, i + 1) << "handled again by the loop";
  }
  messages.Stop();
}

TEST(MidStepMailboxTest, WithoutAThreadTheLoopHandlesAll) {
  const auto mailbox = std::make_shared<Mailbox>();
  MidStepMailbox messages(mailbox, /*own_thread=*/false);
  int handled = 0;
  messages.During([&] {
    messages.Post([&](bool mid_step) {
      EXPECT_FALSE(mid_step);
      ++handled;
    });
    return 0;
  });
  EXPECT_EQ(handled, 0);
  EXPECT_FALSE(messages.TakeHandled());
  mailbox->RunPending(absl::ZeroDuration());
  EXPECT_EQ(handled, 1);
  messages.Stop();
}

}  // namespace
}  // namespace baton::worker
