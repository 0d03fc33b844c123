#include "decode_worker/scheduler.h"

#include <gtest/gtest.h>

#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/transfer/prefill_call.h"
#include "decode_worker/beam_search.h"
#include "tests/decode_worker/scheduler_harness.h"
#include "tests/testing/seed.h"

namespace baton::decode_worker {
namespace {

using SchedulerTest = SchedulerHarness;

TEST_F(SchedulerTest, ThePromptIsRetainedAndTheAnswerIsNot) {
  Make(32);
  std::unique_ptr<Sequence> request = Request(1, {.prompt = 40, .max_tokens = 30});
  request->call->retention = {40, {50, absl::Hours(1)}};
  ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
  Commit(*scheduler_->Admit());
  EXPECT_EQ(cache_->retained_block_count(), 2);  // whole blocks
  while (scheduler_->running_count() > 0) Step();
  EXPECT_EQ(pool_->counts().cached, 4);
  EXPECT_EQ(cache_->retained_block_count(), 2);
}

TEST_F(SchedulerTest, TakesBlocksForThePromptAndGrowsOneAtATime) {
  Make(10);
  ASSERT_TRUE(Submit(1, {.prompt = 16, .max_tokens = 20}).ok());
  Sequence* sequence = scheduler_->Admit();
  ASSERT_NE(sequence, nullptr);
  EXPECT_EQ(sequence->state, State::kReceiving);
  EXPECT_EQ(sequence->blocks.size(), 1);
  EXPECT_EQ(pool_->counts().held, 1);
  Commit(*sequence);
  EXPECT_EQ(pool_->counts().held, 0);
  EXPECT_EQ(sequence->remaining_tokens(), 1);
  for (int i = 0; i < 16; ++i) Step();
  EXPECT_EQ(sequence->blocks.size(), 2);
  Step();
  EXPECT_EQ(sequence->blocks.size(), 3);
  Step(), Step();
  EXPECT_EQ(finished_, std::vector<uint64_t>{1});
  // 35 tokens have KV: two whole blocks stay for the next turn.
  EXPECT_EQ(pool_->counts().cached, 2);
  EXPECT_EQ(pool_->counts().free, 8);
  Check();
}

TEST_F(SchedulerTest, ANextTurnFindsThePrefixAndAsksForTheRest) {
  Make(20);
  ASSERT_TRUE(Submit(1, {.prompt = 40, .max_tokens = 1, .remote = false, .first_token = 5}).ok());
  scheduler_->Admit();
  Step();
  ASSERT_EQ(finished_.size(), 1u);
  ASSERT_TRUE(Submit(2, {.prompt = 100, .max_tokens = 1, .first_token = 5}).ok());
  Sequence* next = scheduler_->Admit();
  EXPECT_EQ(next->state, State::kReceiving);
  EXPECT_EQ(next->computed_tokens, 32);
  EXPECT_EQ(next->blocks.size(), 7);
  // Another salt, another root: nothing is shared.
  auto salted = Request(3, {.prompt = 100, .first_token = 5});
  salted->call->root = 77;
  ASSERT_TRUE(scheduler_->Submit(std::move(salted)).ok());
  EXPECT_EQ(scheduler_->Admit()->computed_tokens, 0);
  Check();
}

TEST_F(SchedulerTest, ALoneSequenceWaitsForBlocksThatAFetchPins) {
  Make(4);
  ASSERT_TRUE(Submit(1, {.prompt = 32, .max_tokens = 1, .remote = false, .first_token = 5}).ok());
  const std::vector<int32_t> tokens = scheduler_->Admit()->tokens;
  Step();
  ASSERT_EQ(finished_.size(), 1u);
  lent_ = cache_->MatchPrefix(0, tokens, kv::RadixCache::kNoLimit).blocks;
  lent_.SetUse(kv::BlockUse::kHeld);
  ASSERT_EQ(lent_.size(), 2);
  ASSERT_TRUE(Submit(2, {.prompt = 31, .max_tokens = 20, .remote = false}).ok());
  Sequence* sequence = scheduler_->Admit();
  ASSERT_NE(sequence, nullptr);
  Step(), Step();
  EXPECT_EQ(sequence->computed_tokens, 32);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Step().chunks.empty()) << "no block is free";
  EXPECT_EQ(sequence->state, State::kRunning);
  EXPECT_TRUE(preempted_.empty());
  lent_.Release();
  EXPECT_EQ(Step().chunks.size(), 1u);
  EXPECT_EQ(sequence->computed_tokens, 33);
}

TEST_F(SchedulerTest, AShortMissingTailIsComputedHere) {
  Make(20, {.local_prefill_max_tokens = 20});
  ASSERT_TRUE(Submit(1, {.prompt = 20}).ok());
  EXPECT_EQ(scheduler_->Admit()->state, State::kRunning);
  ASSERT_TRUE(Submit(2, {.prompt = 21}).ok());
  EXPECT_EQ(scheduler_->Admit()->state, State::kReceiving);
}

// A step that runs reads what a preempted sequence has; what is computed here waits for the next
// step anyway.
TEST_F(SchedulerTest, DuringAStepOnlyWhatReceivesItsKvIsAdmittedAndNothingIsPreempted) {
  Make(8);
  ASSERT_TRUE(
      Submit(1, {.prompt = 64, .max_tokens = 9, .remote = false, .priority = Priority::kLow}).ok());
  EXPECT_EQ(scheduler_->AdmitReceiving(), nullptr);
  ASSERT_NE(scheduler_->Admit(), nullptr);
  ASSERT_TRUE(Submit(2, {.prompt = 32, .max_tokens = 9}).ok());
  Sequence* const received = scheduler_->AdmitReceiving();
  ASSERT_NE(received, nullptr);
  EXPECT_EQ(received->state, State::kReceiving);
  EXPECT_EQ(scheduler_->AdmitReceiving(), nullptr) << "none waits";
  ASSERT_TRUE(Submit(3, {.prompt = 48, .max_tokens = 9, .priority = Priority::kHigh}).ok());
  EXPECT_EQ(scheduler_->AdmitReceiving(), nullptr) << "there is no room";
  EXPECT_TRUE(preempted_.empty());
  Check();
  ASSERT_NE(scheduler_->Admit(), nullptr);
  EXPECT_EQ(preempted_, std::vector<uint64_t>{1});
  Check();
}

TEST_F(SchedulerTest, ChunksShareTheBudgetWithDecoding) {
  Make(40, {.max_num_seqs = 4, .max_num_batched_tokens = 50});
  ASSERT_TRUE(Submit(1, {.prompt = 16, .max_tokens = 30}).ok());
  Commit(*scheduler_->Admit());
  ASSERT_TRUE(Submit(2, {.prompt = 120, .max_tokens = 2, .remote = false}).ok());
  Sequence* prompt = scheduler_->Admit();
  const StepPlan plan = Step();
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[0].sequence->id, 1u);
  EXPECT_EQ(plan.chunks[1].end - plan.chunks[1].begin, 49);
  Step();
  EXPECT_EQ(prompt->computed_tokens, 98);
  EXPECT_EQ(prompt->generated_tokens(), 0);
  Step();
  EXPECT_EQ(prompt->generated_tokens(), 1);
}

TEST_F(SchedulerTest, PromptsThatBeginAlikeComputeItOnce) {
  Make(20);
  ASSERT_TRUE(Submit(1, {.prompt = 100, .max_tokens = 2, .remote = false, .first_token = 5}).ok());
  ASSERT_TRUE(Submit(2, {.prompt = 70, .max_tokens = 2, .remote = false, .first_token = 5}).ok());
  ASSERT_TRUE(Submit(3, {.prompt = 40, .max_tokens = 2, .remote = false}).ok());
  Sequence *first = scheduler_->Admit(), *second = scheduler_->Admit(),
           *other = scheduler_->Admit();
  StepPlan plan = Step();
  ASSERT_EQ(plan.chunks.size(), 2u);  // all of them would have had room
  EXPECT_EQ(plan.chunks[0].sequence, first);
  EXPECT_EQ(plan.chunks[0].end, 100);
  EXPECT_EQ(plan.chunks[1].sequence, other);
  EXPECT_TRUE(plan.cache_hits.empty());
  plan = Step();
  ASSERT_EQ(plan.chunks.size(), 3u);
  EXPECT_EQ(plan.chunks[2].sequence, second);
  EXPECT_EQ(plan.chunks[2].begin, 64);
  EXPECT_EQ(plan.chunks[2].end, 70);
  ASSERT_EQ(plan.cache_hits.size(), 1u);
  EXPECT_EQ(plan.cache_hits[0].sequence, second);
  EXPECT_EQ(plan.cache_hits[0].tokens, 64);
  EXPECT_EQ(pool_->RefCount(second->blocks.ids()[3]), 2);  // the cache and it: `first` has ended
  EXPECT_EQ(second->blocks.size(), 5);
}

// Only the tokens of whole blocks count as shared, and the last token is always one's own.
TEST_F(SchedulerTest, WhoOnlyBeginsAlikeWithinABlockWaitsForNobody) {
  Make(20);
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(
        Submit(id, {.prompt = 16, .max_tokens = 1, .remote = false, .first_token = 5}).ok());
    scheduler_->Admit();
  }
  EXPECT_EQ(Step().chunks.size(), 2u);
}

TEST_F(SchedulerTest, WhoWaitedComputesWhenTheOneAheadIsCancelled) {
  SchedulerOptions options;
  options.max_num_seqs = 4;
  options.max_num_batched_tokens = 40;
  Make(20, options);
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(
        Submit(id, {.prompt = 90, .max_tokens = 1, .remote = false, .first_token = 5}).ok());
    scheduler_->Admit();
  }
  ASSERT_EQ(Step().chunks.size(), 1u);
  scheduler_->Remove(*scheduler_->Find(1));  // it had computed 40 tokens
  const StepPlan plan = Step();
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].sequence, scheduler_->Find(2));
  EXPECT_EQ(plan.chunks[0].begin, 32);
  EXPECT_EQ(plan.chunks[0].end, 72);
  Step(), Step();
  EXPECT_EQ(finished_, (std::vector<uint64_t>{2, 3}));
  Check();
}

TEST_F(SchedulerTest, PromptLogProbabilitiesComeFromComputingAll) {
  Make(20);
  ASSERT_TRUE(Submit(1, {.prompt = 40, .max_tokens = 1, .remote = false, .first_token = 5}).ok());
  auto request = Request(2, {.prompt = 40, .max_tokens = 1, .remote = false, .first_token = 5});
  request->call->prompt_logprobs = 1;
  ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
  scheduler_->Admit(), scheduler_->Admit();
  const StepPlan plan = Step();
  ASSERT_EQ(plan.chunks.size(), 2u);
  EXPECT_EQ(plan.chunks[1].begin, 0);
  EXPECT_EQ(plan.chunks[1].end, 40);
  Check();
}

TEST_F(SchedulerTest, ACancelledTransferIsGoneWithItsEnd) {
  Make(10);
  ASSERT_TRUE(Submit(1, {.prompt = 32}).ok());
  Sequence* sequence = scheduler_->Admit();
  scheduler_->Evict(*sequence, /*ended=*/true);
  EXPECT_EQ(pool_->counts().held, 2);
  Check();
  EXPECT_FALSE(scheduler_->OnTransferEnd(*sequence));
  EXPECT_EQ(pool_->counts().free, 10);
  EXPECT_EQ(scheduler_->All().size(), 0u);
}

TEST_F(SchedulerTest, ChoicesShareThePromptAndCopyOnTheFirstWrite) {
  Make(20, {}, false);
  ASSERT_TRUE(Submit(1, {.prompt = 40, .max_tokens = 5, .remote = false, .n = 3}).ok());
  scheduler_->Admit();
  Step();  // the prompt, and three draws
  EXPECT_EQ(pool_->counts().active, 3);
  const StepPlan plan = Step();
  // Two of them copy the half-full block; the last has it for itself then.
  EXPECT_EQ(plan.chunks.size(), 3u);
  ASSERT_EQ(plan.copy_sources.size(), 2u);
  EXPECT_EQ(plan.copy_sources[0], plan.copy_sources[1]);
  EXPECT_NE(plan.copy_targets[0], plan.copy_targets[1]);
  EXPECT_EQ(pool_->counts().active, 5);
  EXPECT_TRUE(Step().copy_sources.empty());
  while (finished_.size() < 3) Step();
  EXPECT_EQ(pool_->counts().free, 20);
  EXPECT_EQ(ErrorReason(Submit(2, {.n = 65})), "TOO_MANY_CHOICES");
}

// Random requests, commits, lost transfers, cancels and steps through a pool that is always too
// small: accounts add up after every action, and everything ends.
TEST_F(SchedulerTest, RandomHistoriesAddUpAndEnd) {
  const uint32_t base = testing::TestSeed();
  for (uint32_t run = 0; run < 300; ++run) {
    SCOPED_TRACE(::testing::Message() << "seed " << base + run);
    std::mt19937 random(base + run);
    const auto below = [&](int bound) {
      return static_cast<int>(random() % static_cast<uint32_t>(bound));
    };
    scheduler_.reset();
    cache_.reset();
    SchedulerOptions options;
    options.max_num_seqs = 2 + below(8);
    options.max_num_batched_tokens = options.max_num_seqs + 16 + below(64);
    options.local_prefill_max_tokens = below(3) * 20;
    options.long_context_tokens = below(2) * 60;
    Make(10 + below(20), options, below(4) != 0);
    uint64_t next_id = 0;
    std::vector<uint64_t> receiving;
    int actions = 0;
    const auto act = [&](bool closing) {
      const int action = closing ? 2 + below(4) : below(7);
      if (action <= 1 || action == 6) {
        Wish wish;
        wish.prompt = 1 + below(100);
        wish.max_tokens = 1 + below(50);
        wish.remote = below(2) == 0;
        wish.n = below(4) == 0 ? 1 + below(options.max_num_seqs) : 1;
        wish.priority = static_cast<Priority>(below(3));
        wish.tenant = std::string(1, static_cast<char>('a' + below(3)));
        wish.first_token = 1 + below(3);  // prefixes are often shared
        Submit(++next_id, wish).IgnoreError();
      } else if (action == 2 || action == 3) {
        while (Sequence* sequence = scheduler_->Admit()) {
          if (sequence->state == State::kReceiving) receiving.push_back(sequence->id);
        }
        Step();
      } else if (!receiving.empty()) {
        std::swap(receiving[static_cast<size_t>(below(static_cast<int>(receiving.size())))],
                  receiving.back());
        Sequence* sequence = scheduler_->Find(receiving.back());
        receiving.pop_back();
        if (sequence->state == State::kEvicted) {
          scheduler_->OnTransferEnd(*sequence);
        } else if (!closing && below(4) == 0) {
          scheduler_->Evict(*sequence, /*ended=*/true);
          receiving.push_back(sequence->id);  // its end is still to come
        } else {
          Commit(*sequence);
          if (sequence->generated_tokens() == sequence->call->max_tokens) {
            scheduler_->Remove(*sequence);
          }
        }
      } else if (!closing && !scheduler_->All().empty() && below(5) == 0) {
        const std::vector<Sequence*> all = scheduler_->All();
        Sequence* victim = all[static_cast<size_t>(below(static_cast<int>(all.size())))];
        if (victim->state == State::kRunning || victim->state == State::kWaiting) {
          scheduler_->Remove(*victim);
        }
      }
      Check();
      ++actions;
    };
    for (int i = 0; i < 150; ++i) act(false);
    const int limit = actions + 20'000;
    while (!scheduler_->All().empty() && actions < limit) act(true);
    ASSERT_TRUE(scheduler_->All().empty()) << "something never ended";
    ASSERT_EQ(Free(), pool_->counts().total);
  }
  EXPECT_GT(preempted_.size(), 100u) << "the pools were not too small";
  EXPECT_GT(cancelled_.size(), 100u);
  EXPECT_GT(finished_.size(), 1000u);
}

}  // namespace
}  // namespace baton::decode_worker
