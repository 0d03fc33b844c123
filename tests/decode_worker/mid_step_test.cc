// What the loop does while a step runs.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/decode_worker/loop_harness.h"
#include "tests/testing/seed.h"

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
  absl::Notification sent, ended;
  const auto stream =
      Ask({.prompt = Prompt(40), .max_tokens = 5, .remote = true}, [&](const FakeStream& of_it) {
        if (!sent.HasBeenNotified()) sent.Notify();
        if (of_it.finish) ended.Notify();
      });
  const bool in_time = asked.WaitForNotificationWithTimeout(kPatience);
  EXPECT_TRUE(in_time) << "the prompt waits for the end of the step";
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

// Another thread is the prefill worker: it sends what it is asked for, in its own time, or fails.
class PrefillPeer {
 public:
  explicit PrefillPeer(uint32_t seed, std::function<void(FakePrefillCall&, bool fails)> answer)
      : answer_(std::move(answer)), random_(seed), thread_([this] { Run(); }) {}
  ~PrefillPeer() {
    {
      absl::MutexLock lock(&mutex_);
      ending_ = true;
    }
    thread_.join();
  }
  void Ask(std::shared_ptr<FakePrefillCall> call) {
    absl::MutexLock lock(&mutex_);
    asked_.push_back(std::move(call));
  }

 private:
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return ending_ || !asked_.empty(); }
  void Run() {
    while (true) {
      std::shared_ptr<FakePrefillCall> call;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &PrefillPeer::HasWork));
        if (asked_.empty()) return;
        const size_t any = random_() % asked_.size();
        call = std::move(asked_[any]);
        asked_.erase(asked_.begin() + static_cast<std::ptrdiff_t>(any));
      }
      for (uint64_t turns = random_() % 50; turns > 0; --turns) std::this_thread::yield();
      answer_(*call, random_() % 8 == 0);
    }
  }

  const std::function<void(FakePrefillCall&, bool)> answer_;
  std::mt19937_64 random_;  // of the thread
  absl::Mutex mutex_;
  std::deque<std::shared_ptr<FakePrefillCall>> asked_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Requests, cancels, first tokens, KV and failures at any moment of any step, in a pool that is
// often full. The engine checks all KV that it reads.
TEST_P(MidStepTest, WhateverComesDuringStepsAllAnswersAreRight) {
  const uint32_t seed = ::baton::testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  LoopOptions options = ByHand();
  options.own_thread = true;
  Make(24, options);
  engine_->on_step = [](const engine::Batch&) {
    for (int turns = 0; turns < 20; ++turns) std::this_thread::yield();
  };
  PrefillPeer peer(seed, [this](FakePrefillCall& call, bool fails) {
    if (fails || call.cancelled) {
      return Fail(call, call.cancelled ? absl::CancelledError("cancelled")
                                       : absl::UnavailableError("the peer is lost"));
    }
    Commit(call);
  });
  on_transfer_ = [&](const std::shared_ptr<FakePrefillCall>& call) { peer.Ask(call); };
  struct Asked {
    LoopWish wish;
    std::shared_ptr<FakeStream> stream;
    std::unique_ptr<absl::Notification> ended = std::make_unique<absl::Notification>();
    bool cancelled = false;
  };
  std::vector<Asked> all(150);
  for (Asked& asked : all) {
    asked.wish.prompt = Prompt(1 + static_cast<int>(random() % 60), static_cast<int>(random() % 5));
    asked.wish.max_tokens = 1 + static_cast<int>(random() % 30);
    asked.wish.remote = random() % 4 != 0;
    asked.wish.priority = random() % 5 == 0 ? v1::PRIORITY_HIGH : v1::PRIORITY_NORMAL;
    asked.stream = Ask(asked.wish, [&asked](const FakeStream& stream) {
      if (stream.finish) asked.ended->Notify();
    });
    if (random() % 8 == 0) {
      asked.cancelled = true;
      loop_->Cancel(last_id_);
    }
    for (uint64_t turns = random() % 40; turns > 0; --turns) std::this_thread::yield();
  }
  for (const Asked& asked : all) asked.ended->WaitForNotification();
  loop_->Stop();
  int right = 0;
  for (const Asked& asked : all) {
    const absl::Status& status = *asked.stream->finish;
    const std::vector<int32_t> expected =
        FakeEngine::Answer(asked.wish.prompt, asked.wish.max_tokens);
    const std::vector<int32_t>& tokens = asked.stream->tokens[0];
    ASSERT_LE(tokens.size(), expected.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin()));
    if (status.ok()) {
      ++right;
      EXPECT_EQ(tokens, expected);
    } else if (!asked.cancelled) {
      EXPECT_TRUE(asked.wish.remote && absl::IsUnavailable(status)) << status;
    }
  }
  EXPECT_GE(right, 75);
  EXPECT_EQ(loop_->pool().counts().active + loop_->pool().counts().held, 0);
  loop_->CheckIntegrity();
}

INSTANTIATE_TEST_SUITE_P(Engines, MidStepTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "RunsAhead" : "InStep";
});

}  // namespace
}  // namespace baton::decode_worker
