// A draft model beside the decode loop: the same tokens in fewer steps, and drafts only where they
// pay.
#include "decode_worker/model_drafter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "tests/decode_worker/loop_harness.h"
#include "tests/testing/dense_config.h"
#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

using testing::FakeEngine;

class ModelDrafterTest : public LoopTest {
 protected:
  // The model that answers is priced as one of 8 B.
  void MakeDrafting(int blocks, int draft_blocks, int max_drafts = 6, bool recurrent = false,
                    bool caches = true, bool mtp = false) {
    loop_.reset();
    draft_ = std::make_unique<FakeEngine>(draft_blocks, 4);
    draft_->mtp = mtp;
    // 0.8 B, of which 0.1 B are of the embedding.
    draft_->SetLayers(testing::DenseConfig({.layers = 16,
                                            .query_heads = 32,
                                            .kv_heads = 8,
                                            .head_dim = 64,
                                            .ffn_dim = 6144,
                                            .hidden_dim = 2048,
                                            .vocab_size = 50'000}));
    draft_->on_step = [this](const engine::Batch& batch) {
      ++draft_steps_;
      draft_rows_ += batch.rows();
      clock_.Advance(draft_time_);
    };
    LoopOptions options = ByHand();
    using Mode = SpeculationOptions::Mode;
    options.speculation.mode = mtp ? Mode::kMtp : Mode::kDraft;
    options.speculation.max_drafts = max_drafts;
    options.draft_engine = draft_.get();
    options.enable_prefix_caching = caches;
    Make(blocks, options, recurrent);
    engine_->on_step = [this](const engine::Batch& batch) {
      ++steps_;
      clock_.Advance(step_time_);
    };
  }
  ~ModelDrafterTest() override { loop_.reset(); }
  // Answers a request and returns how many steps that took.
  int StepsOf(const LoopWish& wish) {
    const int before = steps_;
    const auto stream = Ask(wish);
    Run();
    EXPECT_EQ(stream->finish, absl::OkStatus());
    EXPECT_EQ(stream->tokens[0], FakeEngine::Answer(wish.prompt, wish.max_tokens));
    return steps_ - before;
  }

  std::unique_ptr<FakeEngine> draft_;
  absl::Duration step_time_;  // 0: nothing is measured
  absl::Duration draft_time_;
  int steps_ = 0;
  int draft_steps_ = 0;
  int draft_rows_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Engines, ModelDrafterTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "RunsAhead" : "StepByStep"; });

TEST_P(ModelDrafterTest, AModelThatAgreesSavesSteps) {
  MakeDrafting(64, 64);
  EXPECT_LT(StepsOf({.prompt = Prompt(20), .max_tokens = 100}), 50);
  EXPECT_GT(Metric("baton_decode_accepted_draft_tokens_total"), 50);
  EXPECT_EQ(load_.counts.active, 0);
}

TEST_P(ModelDrafterTest, TheSameWithMeasuredTimes) {
  MakeDrafting(64, 64);
  step_time_ = absl::Milliseconds(30);
  draft_time_ = absl::Milliseconds(3);
  StepsOf({.prompt = Prompt(20), .max_tokens = 100});
  EXPECT_LT(StepsOf({.prompt = Prompt(20, 500), .max_tokens = 100}), 40);
}

TEST_P(ModelDrafterTest, AModelOrHeadThatIsWrongIsLeftAlone) {
  for (const bool mtp : {false, true}) {
    SCOPED_TRACE(mtp);
    MakeDrafting(64, 64, mtp ? 3 : 6, false, true, mtp);
    draft_->wrong_in = 1;
    step_time_ = absl::Milliseconds(30);
    draft_time_ = absl::Milliseconds(3);
    StepsOf({.prompt = Prompt(20), .max_tokens = 100});
    draft_steps_ = 0;
    EXPECT_EQ(StepsOf({.prompt = Prompt(20, 500), .max_tokens = 400}), 400);
    // About a hundredth of the time.
    EXPECT_LE(draft_steps_ * draft_time_, 0.02 * 400 * step_time_);
    // It is found when it has become better.
    draft_->wrong_in = 0;
    for (int i = 0; i < 40; ++i) StepsOf({.prompt = Prompt(20, 10 * i), .max_tokens = 200});
    EXPECT_LT(StepsOf({.prompt = Prompt(20, 700), .max_tokens = 100}), mtp ? 60 : 50);
  }
}

// Also in the middle of an answer, whose own record says that drafts are never drawn.
TEST_P(ModelDrafterTest, AModelThatBecomesBetterIsFoundWithinAnAnswer) {
  for (const bool mtp : {false, true}) {
    SCOPED_TRACE(mtp);
    MakeDrafting(512, 512, mtp ? 3 : 6, false, true, mtp);
    step_time_ = absl::Milliseconds(30);
    draft_time_ = absl::Milliseconds(5);
    draft_->wrong_in = 1;
    steps_ = 0;
    engine_->on_step = [this](const engine::Batch&) {
      if (++steps_ == 1000) draft_->wrong_in = 0;
      clock_.Advance(step_time_);
    };
    EXPECT_LT(StepsOf({.prompt = Prompt(20), .max_tokens = 6000}), 5000);
  }
}

// A step draws no more tokens than it has sequences at most: a full batch has no room for drafts.
TEST_P(ModelDrafterTest, FullBatchesAreLaunchedAhead) {
  MakeDrafting(64, 64);
  std::vector<std::shared_ptr<FakeStream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(Ask({.prompt = Prompt(20, i), .max_tokens = 50}));
  Run();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(streams[static_cast<size_t>(i)]->tokens[0], FakeEngine::Answer(Prompt(20, i), 50));
  }
  EXPECT_EQ(draft_steps_, 0);
  EXPECT_EQ(engine_->most_under_way(), GetParam() ? 2 : 0);
}

TEST_P(ModelDrafterTest, AModelThatIsSlowIsLeftAlone) {
  MakeDrafting(64, 64);
  step_time_ = absl::Milliseconds(10);
  draft_time_ = absl::Milliseconds(9);
  StepsOf({.prompt = Prompt(20), .max_tokens = 200});
  draft_steps_ = 0;
  StepsOf({.prompt = Prompt(20, 500), .max_tokens = 400});
  EXPECT_LE(draft_steps_ * draft_time_, 0.02 * 400 * step_time_);
}

TEST_P(ModelDrafterTest, LongPromptsAreForLongAnswers) {
  MakeDrafting(256, 256);
  StepsOf({.prompt = Prompt(2000), .max_tokens = 4});
  EXPECT_EQ(draft_rows_, 0);
  StepsOf({.prompt = Prompt(2000), .max_tokens = 400});
  EXPECT_GT(draft_rows_, 2000);
  // As most answers are short now, this one probably is.
  for (int i = 0; i < 100; ++i) StepsOf({.prompt = Prompt(1), .max_tokens = 2});
  draft_rows_ = 0;
  const auto stream = Ask({.prompt = Prompt(2000, 3), .max_tokens = 400});
  for (int i = 0; i < 3; ++i) Turn();
  EXPECT_EQ(draft_rows_, 0);
  Run();
}

TEST_P(ModelDrafterTest, SequencesBeyondTheDraftModelsContextGoOnWithout) {
  MakeDrafting(64, 64);
  draft_->SetMaxModelLen(50);
  EXPECT_LT(StepsOf({.prompt = Prompt(20), .max_tokens = 200}), 190);
  draft_rows_ = 0;
  EXPECT_EQ(StepsOf({.prompt = Prompt(60), .max_tokens = 300}), 300);
  EXPECT_EQ(draft_rows_, 0);
}

TEST_P(ModelDrafterTest, ChoicesComputeTheirPromptOnce) {
  MakeDrafting(64, 64);
  const auto stream = Ask({.prompt = Prompt(160), .max_tokens = 40, .n = 3});
  Run();
  for (int choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(stream->tokens[choice],
              FakeEngine::Answer(Prompt(160), 40, static_cast<uint32_t>(choice)));
  }
  EXPECT_LT(draft_rows_, 2 * 160 + 3 * 2 * 40);
}

TEST_P(ModelDrafterTest, AnMtpHeadSavesSteps) {
  for (const bool recurrent : {false, true}) {
    MakeDrafting(64, 64, 3, recurrent, true, /*mtp=*/true);
    EXPECT_LT(StepsOf({.prompt = Prompt(20), .max_tokens = 100}), 60);
    EXPECT_LT(StepsOf({.prompt = Prompt(20), .max_tokens = 100}), 60) << "behind a cached prompt";
    if (recurrent) continue;  // the fake transfer has no states
    // Of a prompt that another worker computes, there are no hidden states.
    const int before = steps_;
    const auto stream = Ask({.prompt = Prompt(300, 7), .max_tokens = 100, .remote = true});
    Run();
    SendFirstToken(*transfers_.back());
    SendKv(*transfers_.back());
    Run();
    EXPECT_EQ(stream->tokens[0], FakeEngine::Answer(Prompt(300, 7), 100));
    EXPECT_LT(steps_ - before, 60);
  }
}

// Both engines check the KV that a step reads, CheckIntegrity the blocks of both at every turn.
TEST_P(ModelDrafterTest, AnyRequestsInAnyPoolsHaveTheSameAnswers) {
  std::mt19937_64 random(testing::TestSeed());
  SCOPED_TRACE(testing::TestSeed());
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  int64_t preemptions = 0, drafts = 0;
  // Random pools may all be large enough: it goes on until one was not.
  for (int round = 0; round < 12 || (round < 200 && preemptions * drafts == 0); ++round) {
    const bool recurrent = round % 3 == 0;
    MakeDrafting(recurrent ? 24 : 10 + below(10), 4 + below(20), 1 + below(8), recurrent,
                 /*caches=*/below(4) != 0, /*mtp=*/round % 2 == 0);
    draft_->wrong_in = below(3) == 0 ? 0 : 2 + below(20);
    step_time_ = absl::Milliseconds(10 * below(3));
    draft_time_ = absl::Milliseconds(below(3));
    ASSERT_NO_FATAL_FAILURE(ExpectRightAnswers(random));
    preemptions += loop_->scheduler().preemption_count();
    drafts += loop_->accepted_draft_tokens();
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_GT(drafts, 0);
}

}  // namespace
}  // namespace baton::decode_worker
