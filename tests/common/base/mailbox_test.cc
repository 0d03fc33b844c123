#include "common/base/mailbox.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace baton {
namespace {

TEST(MailboxTest, RunsInOrder) {
  Mailbox mailbox;
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(mailbox.Post([&, i] { order.push_back(i); }));
  mailbox.RunPending(absl::ZeroDuration());
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(MailboxTest, APostWakesTheLoop) {
  Mailbox mailbox;
  bool ran = false;
  std::thread poster([&] { mailbox.Post([&] { ran = true; }); });
  while (!ran) mailbox.RunPending(absl::InfiniteDuration());
  poster.join();
}

TEST(MailboxTest, WhatIsPostedWhileRunningRunsNextTime) {
  Mailbox mailbox;
  int runs = 0;
  mailbox.Post([&] {
    ++runs;
    mailbox.Post([&] { ++runs; });
  });
  mailbox.RunPending(absl::ZeroDuration());
  EXPECT_EQ(runs, 1);
  mailbox.RunPending(absl::ZeroDuration());
  EXPECT_EQ(runs, 2);
}

TEST(MailboxTest, ClosedRefusesButRunsWhatItHas) {
  Mailbox mailbox;
  bool ran = false;
  mailbox.Post([&] { ran = true; });
  mailbox.Close();
  EXPECT_FALSE(mailbox.Post([] {}));
  mailbox.RunPending(absl::ZeroDuration());
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace baton
