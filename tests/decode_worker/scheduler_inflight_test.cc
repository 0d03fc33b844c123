#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "tests/decode_worker/scheduler_harness.h"

namespace baton::decode_worker {
namespace {

class SchedulerInflightTest : public SchedulerHarness {
 protected:
  Sequence* Enter(uint64_t id, Wish wish) {
    wish.remote = false;
    EXPECT_TRUE(Submit(id, wish).ok());
    return scheduler_->Admit();
  }
  // As the loop does it.
  void Complete() {
    const std::vector<Chunk> chunks = scheduler_->OnComplete();
    for (const Chunk& chunk : chunks) {
      if (chunk.sequence != nullptr) scheduler_->Computed(chunk);
    }
    for (const Chunk& chunk : chunks) {
      if (chunk.sequence != nullptr && chunk.draws()) Draw(*chunk.sequence);
    }
    Check();
  }
  StepPlan Launch() {
    StepPlan plan = scheduler_->PlanStep();
    scheduler_->OnLaunch(plan);
    return plan;
  }
};

TEST_F(SchedulerInflightTest, TheStepAheadIsTheNextTokenOfEach) {
  Make(20);
  Sequence* first = Enter(1, {.prompt = 15, .max_tokens = 10});
  Sequence* second = Enter(2, {.prompt = 20, .max_tokens = 2});
  Launch();
  std::optional<StepPlan> ahead = scheduler_->PlanAhead();
  ASSERT_TRUE(ahead.has_value());
  ASSERT_EQ(ahead->chunks.size(), 2u);
  for (int i : {0, 1}) {
    EXPECT_EQ(ahead->chunks[i].sequence, i == 0 ? first : second);
    EXPECT_EQ(ahead->chunks[i].begin, i == 0 ? 15 : 20);
    EXPECT_EQ(ahead->chunks[i].end, ahead->chunks[i].begin + 1);
    EXPECT_EQ(ahead->chunks[i].drawn_by, i);
    EXPECT_FALSE(ahead->chunks[i].draws()) << "its token is not known yet";
  }
  EXPECT_EQ(first->blocks.size(), 1) << "position 15 fits";
  scheduler_->OnLaunch(*ahead);
  EXPECT_EQ(scheduler_->inflight_count(), 2);
  Complete();
  EXPECT_TRUE(ahead->chunks[0].draws());
  EXPECT_EQ(scheduler_->inflight_count(), 1);
  // The second's last token is being drawn; the first's next one needs a block.
  ahead = scheduler_->PlanAhead();
  ASSERT_TRUE(ahead.has_value());
  ASSERT_EQ(ahead->chunks.size(), 1u);
  EXPECT_EQ(ahead->chunks[0].sequence, first);
  EXPECT_EQ(ahead->chunks[0].drawn_by, 0);
  EXPECT_EQ(first->blocks.size(), 2);
  scheduler_->OnLaunch(*ahead);
  Complete();
  EXPECT_EQ(finished_, std::vector<uint64_t>{2});
  Complete();
  Launch();
  Complete();
}

TEST_F(SchedulerInflightTest, NothingAheadOfWhatIsNotOneDrawOfEach) {
  SchedulerOptions options;
  options.max_num_batched_tokens = 100;
  Make(40, options);
  Enter(1, {.prompt = 150, .max_tokens = 10});
  Launch();
  EXPECT_FALSE(scheduler_->PlanAhead()) << "a prompt goes on";
  Complete();
  Launch();
  ASSERT_TRUE(scheduler_->PlanAhead());
  Enter(2, {.prompt = 10, .max_tokens = 10});
  EXPECT_FALSE(scheduler_->PlanAhead()) << "another has a prompt to be computed";
  Complete();
  Launch();
  EXPECT_TRUE(scheduler_->PlanAhead());
  Complete();
  Enter(3, {.prompt = 10, .max_tokens = 10, .n = 2});
  Launch();
  EXPECT_FALSE(scheduler_->PlanAhead()) << "a draw of several choices";
  Complete();
  Launch();
  EXPECT_TRUE(scheduler_->PlanAhead()) << "the choices go on one by one";
  Complete();
}

TEST_F(SchedulerInflightTest, WhoseKvHasComeJoinsTheStepAhead) {
  Make(40);
  Sequence* first = Enter(1, {.prompt = 20, .max_tokens = 10});
  ASSERT_TRUE(Submit(2, {.prompt = 31, .max_tokens = 10}).ok());
  Sequence* received = scheduler_->Admit();
  ASSERT_EQ(received->state, State::kReceiving);
  Launch();
  std::optional<StepPlan> ahead = scheduler_->PlanAhead();
  ASSERT_TRUE(ahead) << "who receives needs no step";
  EXPECT_EQ(ahead->chunks.size(), 1u);
  scheduler_->OnLaunch(*ahead);
  Complete();
  Commit(*received);
  ahead = scheduler_->PlanAhead();
  ASSERT_TRUE(ahead);
  ASSERT_EQ(ahead->chunks.size(), 2u);
  EXPECT_EQ(ahead->chunks[0].sequence, first);
  EXPECT_EQ(ahead->chunks[0].drawn_by, 0);
  EXPECT_EQ(ahead->chunks[1].sequence, received);
  EXPECT_EQ(ahead->chunks[1].drawn_by, std::nullopt) << "its token is known";
  EXPECT_EQ(ahead->chunks[1].begin, 31);
  EXPECT_TRUE(ahead->chunks[1].draws());
  scheduler_->OnLaunch(*ahead);
  Complete();
  ahead = scheduler_->PlanAhead();
  ASSERT_TRUE(ahead);
  EXPECT_EQ(ahead->chunks[1].drawn_by, 1);
  EXPECT_EQ(ahead->chunks[1].begin, 32);
  EXPECT_EQ(received->blocks.size(), 3);
  Complete();
}

TEST_F(SchedulerInflightTest, NothingAheadIfEachDrawsItsLastToken) {
  Make(10);
  Enter(1, {.prompt = 10, .max_tokens = 1});
  Launch();
  EXPECT_FALSE(scheduler_->PlanAhead());
  Complete();
  EXPECT_EQ(finished_, std::vector<uint64_t>{1});
}

// Whom to preempt is decided when nothing is under way.
TEST_F(SchedulerInflightTest, NothingAheadThatOnlyAPreemptionMakesRoomFor) {
  Make(3, {}, /*caching=*/false);
  Enter(1, {.prompt = 16, .max_tokens = 20});
  Enter(2, {.prompt = 15, .max_tokens = 20});
  Launch();
  std::optional<StepPlan> ahead = scheduler_->PlanAhead();
  ASSERT_TRUE(ahead) << "the first takes the last block";
  scheduler_->OnLaunch(*ahead);
  Complete();
  EXPECT_FALSE(scheduler_->PlanAhead());
  EXPECT_TRUE(preempted_.empty());
  Complete();
  Launch();
  EXPECT_EQ(preempted_, std::vector<uint64_t>{2});
  Complete();
}

TEST_F(SchedulerInflightTest, BlocksOfWhoLeavesStayTakenUntilTheLastStepThatLooksAtThem) {
  Make(10, {}, /*caching=*/false);
  Sequence* sequence = Enter(1, {.prompt = 40, .max_tokens = 10});
  Enter(2, {.prompt = 10, .max_tokens = 10});
  Launch();
  scheduler_->OnLaunch(*scheduler_->PlanAhead());
  const int free = Free();
  scheduler_->Remove(*sequence);
  Check();
  EXPECT_EQ(Free(), free);
  std::vector<Chunk> chunks = scheduler_->OnComplete();
  EXPECT_EQ(chunks[0].sequence, nullptr);
  EXPECT_NE(chunks[1].sequence, nullptr);
  scheduler_->Computed(chunks[1]);
  Draw(*chunks[1].sequence);
  EXPECT_EQ(Free(), free) << "the second step looks at them";
  chunks = scheduler_->OnComplete();
  EXPECT_EQ(chunks[0].sequence, nullptr);
  EXPECT_EQ(Free(), free + 3);
  Check();
}

// A prompt that was computed twice: the cache's blocks take the place of those that a step under
// way was launched with.
TEST_F(SchedulerInflightTest, BlocksThatTheCacheReplacesStayTakenToo) {
  Make(20);
  Sequence* first = Enter(1, {.prompt = 20, .max_tokens = 10, .first_token = 3});
  // Computed beside the first, as prompts are that begin alike in less than a block.
  Sequence* second = Enter(2, {.prompt = 20, .max_tokens = 10, .first_token = 500});
  std::copy(first->tokens.begin(), first->tokens.end(), second->tokens.begin());
  StepPlan plan;
  plan.chunks = {{first, 0, 20}, {second, 0, 20}};
  scheduler_->OnLaunch(plan);
  scheduler_->OnLaunch(*scheduler_->PlanAhead());
  const kv::BlockId own = second->blocks.ids()[0];
  Complete();
  EXPECT_EQ(second->blocks.ids()[0], first->blocks.ids()[0]);
  ASSERT_NE(second->blocks.ids()[0], own);
  EXPECT_GT(pool_->RefCount(own), 0) << "the second step's table names it";
  Complete();
  EXPECT_EQ(pool_->RefCount(own), 0);
}

// Whose blocks a step under way still looks at is not taken for one without blocks.
TEST_F(SchedulerInflightTest, NoMoreGiveWayThanWhatEntersNeeds) {
  Make(11, {}, /*caching=*/false);
  for (uint64_t id : {1, 2, 3, 4}) {
    Enter(id, {.prompt = 20, .max_tokens = 10, .priority = Priority::kLow});
  }
  Launch();
  scheduler_->OnLaunch(*scheduler_->PlanAhead());
  Complete();
  EXPECT_EQ(Enter(5, {.prompt = 20, .max_tokens = 4, .priority = Priority::kHigh}), nullptr);
  // Two blocks, and one that each of the three others may need next: three are free.
  EXPECT_EQ(preempted_, std::vector<uint64_t>{4});
  EXPECT_EQ(scheduler_->Admit(), nullptr);
  Complete();
  Sequence* high = scheduler_->Admit();
  ASSERT_NE(high, nullptr);
  EXPECT_EQ(high->id, 5u);
  EXPECT_EQ(preempted_, std::vector<uint64_t>{4});
  Check();
}

// A place is free as soon as somebody gives way.
TEST_F(SchedulerInflightTest, WhoWantsAPlaceDoesNotWaitForBlocks) {
  SchedulerOptions options;
  options.max_num_seqs = 3;
  Make(40, options, /*caching=*/false);
  for (uint64_t id : {1, 2, 3}) {
    Enter(id, {.prompt = 20, .max_tokens = 10, .priority = Priority::kLow});
  }
  Launch();
  scheduler_->OnLaunch(*scheduler_->PlanAhead());
  Complete();
  ASSERT_NE(Enter(4, {.prompt = 20, .max_tokens = 4, .priority = Priority::kHigh}), nullptr);
  ASSERT_NE(Enter(5, {.prompt = 20, .max_tokens = 4, .priority = Priority::kHigh}), nullptr);
  EXPECT_EQ(preempted_, (std::vector<uint64_t>{3, 2}));
  Complete();
  Check();
}

class SchedulerDraftsTest : public SchedulerInflightTest {
 protected:
  // A sequence that decodes, its last token at position `tokens` - 1.
  Sequence* Decoding(uint64_t id, int tokens, int max_tokens) {
    Sequence* const sequence = Enter(id, {.prompt = tokens - 1, .max_tokens = max_tokens + 1});
    EXPECT_NE(sequence, nullptr);
    Step();
    EXPECT_TRUE(sequence->decodes());
    EXPECT_EQ(sequence->tokens.size(), static_cast<size_t>(tokens));
    return sequence;
  }
  // A step of the sequence alone with so many drafts, of which the first `drawn` are drawn; returns
  // how many there was memory for.
  int StepWithDrafts(Sequence& sequence, int drafts, int drawn) {
    StepPlan plan = scheduler_->PlanStep();
    EXPECT_EQ(plan.chunks.size(), 1u);
    Chunk& chunk = plan.chunks.front();
    scheduler_->AddDrafts(std::vector<int32_t>(static_cast<size_t>(drafts), 5), chunk);
    const int given = static_cast<int>(chunk.drafts.size());
    EXPECT_EQ(chunk.rows(), chunk.end - chunk.begin + given);
    EXPECT_GE(sequence.blocks.size() * 16, chunk.end + given);
    Check();
    scheduler_->OnLaunch(plan);
    for (const Chunk& of_step : scheduler_->OnComplete()) scheduler_->Computed(of_step);
    drawn = std::min(drawn, given);
    for (int i = 0; i <= drawn; ++i) sequence.tokens.push_back(5);
    if (given > 0) scheduler_->EndDrafts(sequence, drawn);
    Check();
    return given;
  }
};

TEST_F(SchedulerDraftsTest, DraftsThatAreDrawnHaveKvAndOthersLeaveNoBlock) {
  Make(20);
  Sequence* const sequence = Decoding(1, 20, 100);
  EXPECT_EQ(StepWithDrafts(*sequence, 30, 0), 30);
  EXPECT_EQ(sequence->computed_tokens, 20);
  EXPECT_EQ(sequence->blocks.size(), 2) << "those of 21 tokens";
  EXPECT_EQ(StepWithDrafts(*sequence, 30, 12), 30);
  EXPECT_EQ(sequence->computed_tokens, 33);
  EXPECT_EQ(sequence->blocks.size(), 3) << "those of 34 tokens";
  EXPECT_TRUE(sequence->decodes());
  EXPECT_EQ(Free(), 17);
}

TEST_F(SchedulerDraftsTest, NoMoreThanTheAnswerIsDrafted) {
  Make(20);
  Sequence* const sequence = Decoding(1, 20, 10);
  EXPECT_EQ(scheduler_->MaxDrafts(*sequence), 9) << "the tenth is drawn behind them";
  Sequence* const choices = Enter(2, {.prompt = 20, .max_tokens = 10, .n = 3});
  EXPECT_EQ(scheduler_->MaxDrafts(*choices), 0);
  Step();
  EXPECT_EQ(scheduler_->MaxDrafts(*choices), 8) << "each for itself";
}

TEST_F(SchedulerDraftsTest, DraftsTakeNoBlockThatAnySequenceMayNeedNext) {
  Make(6);
  Sequence* const first = Decoding(1, 30, 60);
  EXPECT_EQ(first->blocks.size(), 2);
  // Four are free; one of them is for the next token of the only sequence.
  EXPECT_EQ(StepWithDrafts(*first, 50, 0), 50);
  EXPECT_EQ(StepWithDrafts(*first, 60 - 2, 0), 1) << "what fits into its own";
  EXPECT_TRUE(preempted_.empty());
}

TEST_F(SchedulerDraftsTest, AStateGoesOnBehindTheTokensThatWereKnown) {
  Make(24, {}, /*caching=*/true,
       {.full_pages = 1, .window_pages = 1, .window_blocks = 1, .recurrent = true});
  Sequence* const sequence = Decoding(1, 20, 100);
  EXPECT_EQ(scheduler_->MaxDrafts(*sequence), 15);
  EXPECT_EQ(StepWithDrafts(*sequence, 15, 14), 15);
  EXPECT_EQ(sequence->computed_tokens, 20);
  EXPECT_EQ(sequence->repeated_tokens, 14);
  EXPECT_TRUE(sequence->decodes());
  EXPECT_EQ(scheduler_->MaxDrafts(*sequence), 15);
  // They are computed again, over the end of a block, whose state stays as a snapshot.
  EXPECT_EQ(StepWithDrafts(*sequence, 3, 0), 3);
  EXPECT_EQ(sequence->computed_tokens, 35);
  EXPECT_EQ(sequence->repeated_tokens, 0);
  EXPECT_EQ(sequence->blocks.window_count(), 2);
  // Within a block, the state of the last whole one stays, for later prompts.
  EXPECT_EQ(StepWithDrafts(*sequence, 5, 4), 5);
  EXPECT_EQ(sequence->repeated_tokens, 4);
  EXPECT_EQ(StepWithDrafts(*sequence, 1, 0), 1);
  EXPECT_EQ(sequence->blocks.window_count(), 2);
  EXPECT_TRUE(sequence->blocks.has_window(1));
  EXPECT_EQ(StepWithDrafts(*sequence, 8, 8), 8);
  EXPECT_EQ(sequence->repeated_tokens, 8);
  scheduler_->Remove(*sequence);
  Check();
  EXPECT_EQ(Free(), 24);
}

TEST_F(SchedulerDraftsTest, APreemptionForgetsDraftsAsOtherKv) {
  Make(11, {}, /*caching=*/false,
       {.full_pages = 1, .window_pages = 1, .window_blocks = 1, .recurrent = true});
  Sequence* const last = Decoding(2, 20, 60);
  EXPECT_EQ(StepWithDrafts(*last, 10, 10), 10);
  EXPECT_EQ(last->repeated_tokens, 10);
  ASSERT_TRUE(
      Submit(1, {.prompt = 100, .max_tokens = 20, .remote = false, .priority = Priority::kHigh})
          .ok());
  EXPECT_NE(scheduler_->Admit(), nullptr);
  EXPECT_EQ(preempted_, std::vector<uint64_t>{2});
  EXPECT_EQ(last->repeated_tokens, 0);
  EXPECT_EQ(last->computed_tokens, 0);
  EXPECT_EQ(last->tokens.size(), 31u) << "its tokens stay";
  Check();
}

}  // namespace
}  // namespace baton::decode_worker
