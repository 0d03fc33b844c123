// Drains and flushes of a decode loop: what it refuses, when it is drained, what it evicts.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "common/base/error.h"
#include "tests/decode_worker/loop_harness.h"
#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

class DrainTest : public LoopTest {};

TEST_P(DrainTest, FinishesWhatItHasRefusesTheRestAndComesBack) {
  Make(64, ByHand());
  const auto running = Ask({.prompt = Prompt(40), .max_tokens = 20});
  const auto receiving = Ask({.prompt = Prompt(40, 500), .max_tokens = 3, .remote = true});
  Turn();
  int applied = 0;
  loop_->SetDraining(true, [&] {
    ++applied;
    EXPECT_TRUE(load_.draining) << "published first";
    EXPECT_FALSE(load_.drained);
  });
  const auto refused = Ask({.prompt = Prompt(8)});
  ASSERT_TRUE(refused->finish.has_value()) << "before the loop's turn";
  EXPECT_EQ(ErrorReason(*refused->finish), "DRAINING");
  Run();
  EXPECT_EQ(applied, 1);
  EXPECT_EQ(running->finish, absl::OkStatus());
  EXPECT_FALSE(load_.drained) << "a transfer is open, and its blocks are held";
  Commit(*transfers_[0], /*closed=*/false);
  Run();
  EXPECT_EQ(receiving->finish, absl::OkStatus());
  EXPECT_FALSE(load_.drained) << "its peer may still send";
  transfers_[0]->events.on_closed();
  Run();
  EXPECT_TRUE(load_.drained);
  loop_->SetDraining(false);
  const auto next = Ask({.prompt = Prompt(8)});
  Run();
  EXPECT_EQ(next->finish, absl::OkStatus());
  EXPECT_FALSE(load_.draining || load_.drained);
}

// A request that passed the limit before the drain reaches the loop after it.
TEST_P(DrainTest, ARequestThatIsPostedMeanwhileCountsOrIsRefused) {
  Make(64, ByHand());
  loop_->SetDraining(true);
  Run();
  ASSERT_TRUE(load_.drained);
  loop_->SetDraining(false);
  const auto between = Ask({.prompt = Prompt(40), .max_tokens = 3});
  bool drained_at_once = true;
  loop_->SetDraining(true, [&] { drained_at_once = load_.drained; });
  Run();
  EXPECT_FALSE(drained_at_once) << "the request was accepted before";
  EXPECT_EQ(between->finish, absl::OkStatus());
  EXPECT_TRUE(load_.drained);
}

TEST_P(DrainTest, AFlushDropsWhatNothingUses) {
  Make(64, ByHand());
  int dropped = -1;
  const auto flush = [&] {
    loop_->FlushCache([&](int blocks) { dropped = blocks; });
    Run();
  };
  flush();
  EXPECT_EQ(dropped, 0);
  const auto ended = Ask({.prompt = Prompt(40), .max_tokens = 1});
  Run();
  const int cached = load_.counts.cached;
  EXPECT_GT(cached, 0);
  // The other prompt shares the first of these blocks and is still on its way.
  const auto receiving = Ask({.prompt = Prompt(17), .max_tokens = 3, .remote = true});
  Run();
  ASSERT_EQ(transfers_.size(), 1u);
  const auto position = journal_.TakeSnapshot().position;
  flush();
  EXPECT_EQ(dropped, cached - 1);
  EXPECT_EQ(load_.counts.cached, 0) << "the shared block counts as active";
  EXPECT_EQ(journal_.Since(position)->removed.size(), static_cast<size_t>(dropped));
  EXPECT_EQ(journal_.TakeSnapshot().keys.size(), 1u);
  Commit(*transfers_[0]);
  Run();
  EXPECT_EQ(receiving->tokens[0], testing::FakeEngine::Answer(Prompt(17), 3));
}

TEST_P(DrainTest, ALoopThatHasEndedAnswers) {
  Make(64, ByHand());
  loop_->Stop();
  int answers = 0;
  loop_->SetDraining(false, [&] { ++answers; });
  loop_->FlushCache([&](int) { ++answers; });
  EXPECT_EQ(answers, 2);
}

// Random requests, ends of transfers, cancels, drains and flushes: after every turn the loop
// reports that it is drained exactly if it drains and nothing is left.
TEST_P(DrainTest, IsDrainedExactlyWhenNothingIsLeft) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto below = [&](uint32_t n) { return random() % n; };
  Make(48, ByHand());
  std::vector<std::shared_ptr<FakeStream>> streams;
  size_t open_transfer = 0;  // those before it are closed
  bool draining = false;
  int drained = 0, drained_later = 0;
  for (int i = 0; i < 1500; ++i) {
    switch (below(draining ? 12 : 5)) {
      case 0:
      case 1: {
        streams.push_back(Ask(
            {.prompt = Prompt(1 + static_cast<int>(below(60)), static_cast<int>(below(3)) * 100),
             .max_tokens = 1 + static_cast<int>(below(20)),
             .remote = below(2) == 0,
             .n = static_cast<int>(below(3))}));
        EXPECT_EQ(streams.back()->finish.has_value(), draining);
        break;
      }
      case 2:
        if (!streams.empty()) loop_->Cancel(1 + below(static_cast<uint32_t>(streams.size())));
        break;
      case 3:
        draining = !draining;
        loop_->SetDraining(draining);
        break;
      case 4:
        loop_->FlushCache([&](int blocks) { EXPECT_GE(blocks, 0); });
        break;
      default:
        break;  // the worker works
    }
    if (open_transfer < transfers_.size() && below(2) == 0) {
      FakePrefillCall& call = *transfers_[open_transfer++];
      call.cancelled ? Fail(call, absl::CancelledError("cancelled")) : Commit(call);
    }
    Turn();
    bool open = open_transfer < transfers_.size();
    for (const auto& stream : streams) open = open || !stream->finish.has_value();
    const bool left = open || load_.counts.active + load_.counts.held > 0;
    EXPECT_EQ(load_.draining, draining) << "turn " << i;
    ASSERT_EQ(load_.drained, draining && !left) << "turn " << i;
    drained += load_.drained ? 1 : 0;
    drained_later += draining && left ? 1 : 0;
  }
  EXPECT_GT(drained, 0);
  EXPECT_GT(drained_later, 0);
  while (open_transfer < transfers_.size()) {
    FakePrefillCall& call = *transfers_[open_transfer++];
    call.cancelled ? Fail(call, absl::CancelledError("cancelled")) : Commit(call);
    Run();
  }
}

INSTANTIATE_TEST_SUITE_P(Engines, DrainTest, ::testing::Bool(), [](const auto& info) {
  return info.param ? "that_runs_ahead" : "step_by_step";
});

}  // namespace
}  // namespace baton::decode_worker
