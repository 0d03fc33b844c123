// What the loop does while a step runs.
#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "decode_worker/mid_step_mailbox.h"
#include "tests/decode_worker/loop_harness.h"

namespace baton::decode_worker {
namespace {

using testing::FakeEngine;

constexpr absl::Duration kPatience = absl::Seconds(20);

class MidStepTest : public LoopTest {};

TEST_P(MidStepTest, ARequestGetsItsPromptAndItsFirstTokenWhileAStepRuns) {
  LoopOptions options = ByHand();
  options.own_thread = true;
  Make(64, options);
  absl::Notification step_runs, step_may_end;
  engine_->on_step = [&](const engine::Batch&) {
    if (step_runs.HasBeenNotified()) return;
    step_runs.Notify();
    step_may_end.WaitForNotification();
  };
  std::shared_ptr<FakePrefillCall> call;
  absl::Notification asked;
  on_transfer_ = [&](const std::shared_ptr<FakePrefillCall>& started) {
    call = started;
    asked.Notify();
  };
  const auto running = Ask({.prompt = Prompt(20, 300), .max_tokens = 5});
  step_runs.WaitForNotification();
  const auto stream = Ask({.prompt = Prompt(40), .max_tokens = 5, .remote = true});
  const bool in_time = asked.WaitForNotificationWithTimeout(kPatience);
  EXPECT_TRUE(in_time) << "the prompt waits for the end of the step";
  absl::Notification sent, ended;
  stream->on_change = [&] {
    if (!sent.HasBeenNotified()) sent.Notify();
    if (stream->finish) ended.Notify();
  };
  if (in_time) {
    SendFirstToken(*call);
    EXPECT_TRUE(sent.WaitForNotificationWithTimeout(kPatience)) << "the first token waits for the end of the step";
  }
  EXPECT_FALSE(running->finish.has_value());
  step_may_end.Notify();
  asked.WaitForNotification();
  if (!in_time) SendFirstToken(*call);
  SendKv(*call);
  ended.WaitForNotification();
  loop_->Stop();
  EXPECT_EQ(stream->finish, absl::OkStatus());
  EXPECT_EQ(stream->tokens[0], FakeEngine::Answer(Prompt(40), 5));
  EXPECT_EQ(running->tokens[0], FakeEngine::Answer(Prompt(20, 300), 5));
}

INSTANTIATE_TEST_SUITE_P(Engines, MidStepTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "RunsAhead" : "InStep";
});

// Posters, steps and the loop at once: what messages write has no lock of its own.
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
}  // namespace baton::decode_worker
