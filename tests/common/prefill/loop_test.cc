#include "common/prefill/loop.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "tests/common/prefill/fake_transfer.h"
#include "tests/decode_worker/fake_engine.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/registry_values.h"

namespace baton::prefill {
namespace {

class PrefillLoopTest : public ::testing::Test {
 protected:
  void Make(LoopOptions options) {
    options.own_thread = false;
    loop_ = std::make_unique<PrefillLoop>(options, engine_, journal_, clock_, metrics_,
                                          [this](const worker::WorkerLoad& load) { load_ = load; });
  }
  void Run() {
    while (loop_->Turn(absl::ZeroDuration())) loop_->CheckIntegrity();
  }
  // Prompts with different starts share no block.
  std::shared_ptr<FakeTransfer> Ask(int tokens) {
    return Ask(tokens, static_cast<int>(last_id_ + 1) * 10);
  }
  std::shared_ptr<FakeTransfer> Ask(int tokens, int start) {
    auto transfer = std::make_shared<FakeTransfer>();
    transfer->keep = true;
    auto job = std::make_unique<PrefillJob>();
    job->id = ++last_id_;
    for (int i = 0; i < tokens; ++i) {
      job->tokens.push_back((start + i) % 1000);
    }
    job->prompt_tokens = tokens;
    transfer->JoinTo(*job);
    loop_->jobs().Submit(std::move(job));
    return transfer;
  }

  testing::FakeClock clock_;
  worker::CacheJournal journal_;
  prometheus::Registry registry_;
  PrefillMetrics metrics_{registry_, "model"};
  testing::FakeEngine engine_{64};
  uint64_t last_id_ = 0;
  worker::WorkerLoad load_;
  std::unique_ptr<PrefillLoop> loop_;  // goes first
};

TEST_F(PrefillLoopTest, AFloodDuringAStepIsRefusedAtOnceAndBounded) {
  LoopOptions options;
  options.scheduler.max_queued_requests = 5;
  Make(options);
  std::vector<std::shared_ptr<FakeTransfer>> accepted = {Ask(40)};
  int refused = 0;
  engine_.on_step = [&, flooded = false](const engine::Batch&) mutable {
    if (std::exchange(flooded, true)) return;
    for (int i = 0; i < 100; ++i) {
      std::shared_ptr<FakeTransfer> transfer = Ask(20);
      if (!transfer->finish) {
        accepted.push_back(std::move(transfer));
        continue;
      }
      EXPECT_EQ(ErrorReason(*transfer->finish), "QUEUE_FULL");
      EXPECT_TRUE(ErrorRetryAfter(*transfer->finish).has_value());
      ++refused;
    }
  };
  Run();
  EXPECT_EQ(refused, 95);
  for (const auto& transfer : accepted) EXPECT_EQ(transfer->finish, absl::OkStatus());
  // Now there is room again, until it drains.
  EXPECT_FALSE(Ask(20)->finish.has_value());
  loop_->SetDraining(true);
  const auto late = Ask(20);
  ASSERT_TRUE(late->finish.has_value()) << "refused without a turn";
  EXPECT_EQ(ErrorReason(*late->finish), "DRAINING");
}

TEST_F(PrefillLoopTest, IsDrainedOnceItsKvHasLeft) {
  constexpr int kBlocks = 40 / testing::FakeEngine::kBlockTokens;
  Make({});
  Ask(40, 1);
  Run();
  EXPECT_EQ(load_.computed_prompt_tokens, 40);
  // The fake engine reports no layers, but what is cached is sent at once.
  const auto second = Ask(40, 1);
  loop_->SetDraining(true, [this] { EXPECT_TRUE(load_.draining && !load_.drained); });
  Run();
  EXPECT_EQ(second->finish, absl::OkStatus());
  EXPECT_LT(load_.computed_prompt_tokens, 80) << "the second found blocks cached";
  ASSERT_NE(second->unsent, nullptr);
  EXPECT_FALSE(load_.drained) << "its KV has not left";
  EXPECT_GE(load_.counts.held, kBlocks);
  int dropped = -1;
  const auto flush = [&] {
    loop_->FlushCache([&](int blocks) { dropped = blocks; });
    Run();
  };
  flush();
  EXPECT_EQ(dropped, 0) << "the KV that has not left is cached, too, and stays";
  second->unsent = nullptr;
  Run();
  EXPECT_TRUE(load_.drained);
  EXPECT_EQ(load_.counts.cached, kBlocks);
  flush();
  EXPECT_EQ(dropped, kBlocks);
  EXPECT_EQ(load_.counts.free, load_.counts.total);
  EXPECT_TRUE(load_.drained);
  loop_->SetDraining(false);
  const auto third = Ask(40);
  Run();
  EXPECT_EQ(third->finish, absl::OkStatus());
  EXPECT_FALSE(load_.draining || load_.drained);
  loop_->Stop();
  bool answered = false;
  loop_->SetDraining(true, [&] { answered = true; });
  EXPECT_TRUE(answered) << "by a loop that has ended";
}

TEST_F(PrefillLoopTest, APromptWaitsForBlocksThatLeaveOverASlowLink) {
  constexpr int kBlockTokens = testing::FakeEngine::kBlockTokens;
  Make({});
  const auto first = Ask(kBlockTokens * 40, 1);
  Run();
  ASSERT_EQ(first->finish, absl::OkStatus());
  // What was computed is cached; a second transfer of it holds the blocks.
  const auto again = Ask(kBlockTokens * 40, 1);
  Run();
  ASSERT_NE(again->unsent, nullptr);
  const auto second = Ask(kBlockTokens * 30, 500);
  for (int i = 0; i < 7; ++i) {
    clock_.Advance(absl::Seconds(1));
    loop_->Turn(absl::ZeroDuration());
  }
  EXPECT_FALSE(second->finish.has_value()) << *second->finish;
  again->unsent = nullptr;
  Run();
  EXPECT_EQ(second->finish, absl::OkStatus());
}

TEST_F(PrefillLoopTest, MeasuresWhatItDoesBetweenSteps) {
  LoopOptions options;
  options.scheduler.max_num_batched_tokens = 16;
  Make(options);
  engine_.on_step = [this, first = true](const engine::Batch&) mutable {
    clock_.Advance(absl::Milliseconds(10));
    if (!std::exchange(first, false)) return;
    loop_->FlushCache([this](int) { clock_.Advance(absl::Milliseconds(3)); });
  };
  Ask(48, 1);
  Run();
  EXPECT_EQ(testing::MetricValue(registry_, "baton_prefill_step_gap_seconds"), 2);
  EXPECT_DOUBLE_EQ(testing::HistogramSum(registry_, "baton_prefill_step_gap_seconds"), 0.003);
  clock_.Advance(absl::Seconds(1));  // without work
  Ask(48, 500);
  Run();
  EXPECT_EQ(testing::MetricValue(registry_, "baton_prefill_step_gap_seconds"), 4);
  EXPECT_DOUBLE_EQ(testing::HistogramSum(registry_, "baton_prefill_step_gap_seconds"), 0.003);
}

TEST_F(PrefillLoopTest, MeasuresComputingAndSendingSeparately) {
  LoopOptions options;
  options.scheduler.max_num_batched_tokens = 16;
  Make(options);
  engine_.on_step = [this, asked = false](const engine::Batch&) mutable {
    clock_.Advance(absl::Milliseconds(10));
    if (!std::exchange(asked, true)) Ask(16, 500);  // passes the long one
  };
  Ask(48, 1);
  Run();
  const auto sum = [this](const char* name) { return testing::HistogramSum(registry_, name); };
  EXPECT_EQ(testing::MetricValue(registry_, "baton_prefill_duration_seconds"), 2);
  EXPECT_DOUBLE_EQ(sum("baton_prefill_duration_seconds"), 0.04)
      << "the long prompt's wait for the short one is not computing";
  EXPECT_EQ(testing::MetricValue(registry_, "baton_kv_transfer_duration_seconds"), 2);
  EXPECT_EQ(sum("baton_kv_transfer_duration_seconds"), 0);
  // What is cached is sent at once, and leaves late.
  const auto slow = Ask(48, 1);
  Run();
  EXPECT_EQ(slow->finish, absl::OkStatus());
  EXPECT_EQ(testing::MetricValue(registry_, "baton_requests_queued", "transfer"), 1);
  EXPECT_EQ(testing::MetricValue(registry_, "baton_requests_inflight"), 0);
  clock_.Advance(absl::Milliseconds(70));
  slow->unsent = nullptr;
  Run();
  EXPECT_EQ(testing::MetricValue(registry_, "baton_requests_queued", "transfer"), 0);
  EXPECT_DOUBLE_EQ(sum("baton_kv_transfer_duration_seconds"), 0.07);
  EXPECT_EQ(sum("baton_kv_transfer_size_bytes"), 7 * engine_.kv_layout().BlockBytes());
  EXPECT_EQ(testing::MetricValue(registry_, "baton_queue_duration_seconds", "normal"), 3);
}

TEST_F(PrefillLoopTest, CountsTransfersThatEndBeforeTheirPromptIsComputed) {
  LoopOptions options;
  options.scheduler.max_num_batched_tokens = 16;
  Make(options);
  Ask(48, 1);
  const auto waiting = Ask(640, 200);
  EXPECT_TRUE(loop_->Turn(absl::ZeroDuration()));
  loop_->jobs().Cancel(1);
  loop_->jobs().Cancel(2);
  Run();
  EXPECT_TRUE(waiting->finish.has_value());
  EXPECT_EQ(testing::MetricValue(registry_, "baton_kv_transfer_failures_total", "cancelled"), 1)
      << "the second had not started";
  EXPECT_EQ(testing::MetricValue(registry_, "baton_kv_transfer_duration_seconds"), 0);
}

}  // namespace
}  // namespace baton::prefill
