// Drafts in the decode loop: the same tokens in fewer steps, and nothing else changes.
#include "decode_worker/speculation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/decode_worker/loop_harness.h"
#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

using internal::v1::DecodeResponse;
using testing::FakeEngine;

class SpeculationTest : public LoopTest {
 protected:
  static LoopOptions Drafting(int max_drafts = 8) {
    LoopOptions options = ByHand();
    options.speculation.mode = SpeculationOptions::Mode::kSuffix;
    options.speculation.max_drafts = max_drafts;
    return options;
  }
  void MakeCounting(int blocks, const LoopOptions& options, bool recurrent = false) {
    Make(blocks, options, recurrent);
    engine_->on_step = [this](const engine::Batch& batch) {
      ++steps_;
      for (const engine::BatchEntry& entry : batch.entries) {
        drafts_ += static_cast<int>(entry.drafts.size());
      }
    };
  }
  int StepsOf(const std::function<void()>& run) {
    const int before = steps_;
    run();
    return steps_ - before;
  }

  int steps_ = 0;
  int drafts_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Engines, SpeculationTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "RunsAhead" : "StepByStep"; });

TEST_P(SpeculationTest, AnAnswerLikeARecentOneTakesFewerSteps) {
  MakeCounting(64, Drafting());
  const std::vector<int32_t> expected = FakeEngine::Answer(Prompt(20), 60);
  const auto first = Ask({.prompt = Prompt(20), .max_tokens = 60});
  const int plain = StepsOf([&] { Run(); });
  EXPECT_EQ(first->tokens[0], expected);
  const double drafts_before = Metric("baton_decode_draft_tokens_total");
  drafts_ = 0;
  const auto second = Ask({.prompt = Prompt(20), .max_tokens = 60, .logprobs = true});
  const int drafted = StepsOf([&] { Run(); });
  EXPECT_EQ(second->tokens[0], expected);
  EXPECT_EQ(second->finish, absl::OkStatus());
  EXPECT_LT(drafted, plain / 2);
  EXPECT_GT(drafts_, 0);
  // Each token has its log probability, and the last message says what was drafted.
  int logprobs = 0;
  for (const DecodeResponse& message : second->messages) logprobs += message.logprobs_size();
  EXPECT_EQ(logprobs, 60);
  const auto& usage = second->messages.back().usage();
  EXPECT_EQ(usage.draft_tokens(), drafts_);
  EXPECT_GT(usage.accepted_draft_tokens(), 30);
  EXPECT_LE(usage.accepted_draft_tokens(), usage.draft_tokens());
  EXPECT_EQ(Metric("baton_decode_draft_tokens_total") - drafts_before, drafts_);
  EXPECT_GE(Metric("baton_decode_accepted_draft_tokens_total"), usage.accepted_draft_tokens());
  EXPECT_EQ(Metric("baton_decode_tokens_total"), 120);
}

TEST_P(SpeculationTest, AStopTokenAmongDraftsEndsTheAnswer) {
  MakeCounting(64, Drafting());
  const std::vector<int32_t> answer = FakeEngine::Answer(Prompt(20), 60);
  Ask({.prompt = Prompt(20), .max_tokens = 60});
  Run();
  for (const size_t end : {20u, 21u, 22u, 23u, 24u, 25u, 26u, 27u, 28u}) {
    const auto stopped =
        Ask({.prompt = Prompt(20), .max_tokens = 60, .stop_token_ids = {answer[end]}});
    Run();
    const std::vector<int32_t> expected(answer.begin(),
                                        std::find(answer.begin(), answer.end(), answer[end]) + 1);
    EXPECT_EQ(stopped->tokens[0], expected);
    ASSERT_FALSE(stopped->messages.empty());
    EXPECT_EQ(stopped->messages.back().finish(), DecodeResponse::FINISH_STOP);
    EXPECT_EQ(load_.counts.active, 0);
  }
  EXPECT_GT(drafts_, 0);
}

TEST_P(SpeculationTest, NoMoreThanTheAnswerIsDrafted) {
  MakeCounting(64, Drafting());
  Ask({.prompt = Prompt(20), .max_tokens = 60});
  Run();
  int furthest = 0;
  engine_->on_step = [&](const engine::Batch& batch) {
    for (const engine::BatchEntry& entry : batch.entries) {
      furthest = std::max(furthest, entry.context + entry.rows());
    }
  };
  Ask({.prompt = Prompt(20), .max_tokens = 30});
  Run();
  // The last token of an answer is never computed.
  EXPECT_EQ(furthest, 20 + 30 - 1);
}

TEST_P(SpeculationTest, RequestsAndPrioritiesMayBeWithoutDrafts) {
  LoopOptions options = Drafting();
  options.speculation.priorities[static_cast<size_t>(Priority::kLow)] = false;
  MakeCounting(64, options);
  const std::vector<int32_t> expected = FakeEngine::Answer(Prompt(20), 40);
  const auto ask = [&](LoopWish wish) {
    drafts_ = 0;
    wish.max_tokens = 40;
    const auto stream = Ask(wish);
    Run();
    EXPECT_EQ(stream->tokens[0], expected);
    return drafts_;
  };
  ask({.prompt = Prompt(20)});
  EXPECT_GT(ask({.prompt = Prompt(20)}), 0);
  EXPECT_EQ(ask({.prompt = Prompt(20), .no_speculation = true}), 0);
  EXPECT_EQ(ask({.prompt = Prompt(20), .priority = v1::PRIORITY_LOW}), 0);
  // Another tenant's answers, and those with another salt, are not looked at.
  const auto accepted = [&](const LoopWish& wish) {
    const int64_t before = loop_->accepted_draft_tokens();
    ask(wish);
    return loop_->accepted_draft_tokens() - before;
  };
  EXPECT_EQ(accepted({.prompt = Prompt(20), .tenant = "other"}), 0);
  EXPECT_GT(accepted({.prompt = Prompt(20), .tenant = "other"}), 20);
  EXPECT_EQ(accepted({.prompt = Prompt(20), .cache_salt = "salt"}), 0);
}

TEST_P(SpeculationTest, ASearchIsWithoutDrafts) {
  MakeCounting(64, Drafting());
  for (int i = 0; i < 2; ++i) {
    Ask({.prompt = Prompt(20), .max_tokens = 40, .beam_width = 2});
    Run();
  }
  EXPECT_EQ(drafts_, 0);
}

// Once the first tokens are drawn, the worker drafts for each choice separately.
TEST_P(SpeculationTest, ChoicesAreDraftedApart) {
  MakeCounting(64, Drafting());
  for (int i = 0; i < 2; ++i) {
    const auto stream = Ask({.prompt = Prompt(20), .max_tokens = 40, .n = 3});
    Run();
    for (int choice = 0; choice < 3; ++choice) {
      EXPECT_EQ(stream->tokens[choice],
                FakeEngine::Answer(Prompt(20), 40, static_cast<uint32_t>(choice)));
    }
  }
  EXPECT_GT(drafts_, 0);
}

// Such a prompt's last token decodes, and owes them.
TEST_P(SpeculationTest, LogProbabilitiesOfAPromptComeBeforeDrafts) {
  MakeCounting(64, Drafting());
  Ask({.prompt = {7}, .max_tokens = 40});
  Run();
  const std::vector<int32_t> answer = FakeEngine::Answer({7}, 40);
  // The prompt's only token is in the answer before.
  const std::vector<int32_t> prompt = {answer[5]};
  const auto stream = Ask({.prompt = prompt, .max_tokens = 10, .prompt_logprobs = true});
  Run();
  EXPECT_EQ(stream->finish, absl::OkStatus());
  EXPECT_EQ(stream->tokens[0], FakeEngine::Answer(prompt, 10));
}

// The engine checks all KV and states that a step reads; CheckIntegrity the blocks, at every turn.
TEST_P(SpeculationTest, AnyRequestsInAnyPoolHaveTheSameAnswers) {
  std::mt19937_64 random(testing::TestSeed());
  SCOPED_TRACE(testing::TestSeed());
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  int64_t preemptions = 0, drafts = 0;
  // Random pools may all be large enough: it goes on until one was not.
  for (int round = 0; round < 12 || (round < 200 && preemptions * drafts == 0); ++round) {
    LoopOptions options = Drafting(1 + below(8));
    options.enable_prefix_caching = below(4) != 0;
    options.host_kv_bytes = below(2) * 10'000;
    const bool recurrent = round % 3 == 0;
    MakeCounting(recurrent ? 24 : 10 + below(10), options, recurrent);
    ASSERT_NO_FATAL_FAILURE(ExpectRightAnswers(random));
    preemptions += loop_->scheduler().preemption_count();
    drafts += loop_->accepted_draft_tokens();
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(drafts, 0);
}

}  // namespace
}  // namespace baton::decode_worker
