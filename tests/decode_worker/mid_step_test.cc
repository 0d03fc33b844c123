// What the loop does while a step runs.
#include <gtest/gtest.h>

#include <memory>

#include "absl/synchronization/notification.h"
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

}  // namespace
}  // namespace baton::decode_worker
