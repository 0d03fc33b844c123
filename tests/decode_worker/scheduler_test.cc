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

namespace baton::decode_worker {
namespace {

using State = Sequence::State;

struct Wish {
  int prompt = 16;
  int max_tokens = 1;
  bool remote = true;
  int n = 1;
  Priority priority = Priority::kNormal;
  std::string tenant = "";
  int first_token = 0;  // of the prompt; the others count up from it
};

// A scheduler with its pool and cache, and the events it sends.
class SchedulerTest : public ::testing::Test {
 protected:
  void Make(int blocks, const SchedulerOptions& options = {}, bool caching = true) {
    pool_ = std::make_unique<kv::BlockPool>(blocks);
    if (caching) cache_ = std::make_unique<kv::RadixCache>(*pool_, options.block_tokens);
    DecodeScheduler::Events events;
    events.before_preemption = [this](Sequence& s) { preempted_.push_back(s.id); };
    events.cancel_transfer = [this](Sequence& s) { cancelled_.push_back(s.id); };
    scheduler_ = std::make_unique<DecodeScheduler>(options, *pool_, cache_.get(), events);
  }

  std::unique_ptr<Sequence> Request(uint64_t id, const Wish& wish) {
    auto call = std::make_shared<Call>();
    call->id = id;
    call->prompt_tokens = call->request_tokens = wish.prompt;
    call->max_tokens = wish.max_tokens;
    call->n = call->open_choices = wish.n;
    call->priority = wish.priority;
    call->tenant = wish.tenant;
    if (wish.remote) call->prefill.address = "p:1";
    auto sequence = std::make_unique<Sequence>();
    sequence->id = id;
    sequence->call = std::move(call);
    sequence->draws = wish.n;
    const int first = wish.first_token != 0 ? wish.first_token : static_cast<int>(id) * 10'000;
    for (int i = 0; i < wish.prompt; ++i) sequence->tokens.push_back(first + i);
    return sequence;
  }
  absl::Status Submit(uint64_t id, const Wish& wish) {
    return scheduler_->Submit(Request(id, wish));
  }

  // What the loop does: compute, draw a token for each sequence that has come to its end.
  StepPlan Step() {
    const StepPlan plan = scheduler_->PlanStep();
    Check();
    for (const Chunk& chunk : plan.chunks) {
      scheduler_->Computed(chunk);
      if (!chunk.draws()) continue;
      Draw(*chunk.sequence);
    }
    return plan;
  }
  void Draw(Sequence& sequence) {
    const int draws = std::exchange(sequence.draws, 1);
    std::vector<Sequence*> choices = {&sequence};
    for (int i = 1; i < draws; ++i) {
      auto fork = std::make_unique<Sequence>();
      fork->id = sequence.id * 100 + static_cast<uint64_t>(i);
      fork->call = sequence.call;
      fork->tokens = sequence.tokens;
      fork->sampling.choice = static_cast<uint32_t>(i);
      choices.push_back(scheduler_->Fork(sequence, std::move(fork)));
    }
    for (Sequence* choice : choices) {
      choice->tokens.push_back(static_cast<int>(choice->id) * 7 +
                               static_cast<int>(choice->tokens.size()));
      if (choice->generated_tokens() == choice->call->max_tokens) {
        finished_.push_back(choice->id);
        scheduler_->Remove(*choice);
      }
    }
  }
  void Commit(Sequence& sequence) {
    if (sequence.draws == 1) sequence.tokens.push_back(1);
    scheduler_->Commit(sequence);
  }
  void Check() {
    pool_->CheckIntegrity();
    if (cache_ != nullptr) cache_->CheckIntegrity();
    scheduler_->CheckIntegrity();
  }
  int Free() const {
    return pool_->counts().free + (cache_ != nullptr ? cache_->evictable_block_count() : 0);
  }

  std::unique_ptr<kv::BlockPool> pool_;
  std::unique_ptr<kv::RadixCache> cache_;
  std::unique_ptr<DecodeScheduler> scheduler_;
  std::vector<uint64_t> preempted_, cancelled_, finished_;
};

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

TEST_F(SchedulerTest, AShortMissingTailIsComputedHere) {
  Make(20, {.local_prefill_max_tokens = 20});
  ASSERT_TRUE(Submit(1, {.prompt = 20}).ok());
  EXPECT_EQ(scheduler_->Admit()->state, State::kRunning);
  ASSERT_TRUE(Submit(2, {.prompt = 21}).ok());
  EXPECT_EQ(scheduler_->Admit()->state, State::kReceiving);
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
  EXPECT_TRUE(plan.found.empty());
  plan = Step();
  ASSERT_EQ(plan.chunks.size(), 3u);
  EXPECT_EQ(plan.chunks[2].sequence, second);
  EXPECT_EQ(plan.chunks[2].begin, 64);
  EXPECT_EQ(plan.chunks[2].end, 70);
  ASSERT_EQ(plan.found.size(), 1u);
  EXPECT_EQ(plan.found[0].sequence, second);
  EXPECT_EQ(plan.found[0].tokens, 64);
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

TEST_F(SchedulerTest, TheLastInRankGivesWayAndComesBackFirst) {
  Make(4, {}, /*caching=*/false);
  for (const uint64_t id : {1, 2}) ASSERT_TRUE(Submit(id, {.prompt = 16, .max_tokens = 40}).ok());
  for (int i = 0; i < 2; ++i) Commit(*scheduler_->Admit());
  ASSERT_TRUE(Submit(3, {.prompt = 16, .max_tokens = 40}).ok());
  for (int i = 0; i < 17; ++i) Step();  // both need a third block
  EXPECT_EQ(preempted_, std::vector<uint64_t>{2});
  const Sequence* parked = scheduler_->Find(2);
  EXPECT_EQ(parked->state, State::kWaiting);
  EXPECT_EQ(parked->tokens.size(), 33u) << "what was generated stays";
  while (finished_.empty()) {
    EXPECT_EQ(scheduler_->Admit(), nullptr);
    Step();
  }
  // The preempted one comes before the one that never was inside.
  Sequence* back = scheduler_->Admit();
  ASSERT_NE(back, nullptr);
  EXPECT_EQ(back->id, 2u);
  EXPECT_EQ(back->blocks.size(), 3);
}

TEST_F(SchedulerTest, AReceivingOneGivesWayWhenItsWriterHasStopped) {
  Make(4, {}, false);
  ASSERT_TRUE(Submit(1, {.prompt = 16, .max_tokens = 40}).ok());
  Commit(*scheduler_->Admit());
  ASSERT_TRUE(Submit(2, {.prompt = 32, .max_tokens = 3}).ok());
  Sequence* second = scheduler_->Admit();
  ASSERT_EQ(second->state, State::kReceiving);
  for (int i = 0; i < 17; ++i) Step();
  EXPECT_EQ(cancelled_, std::vector<uint64_t>{2});
  EXPECT_TRUE(scheduler_->PlanStep().chunks.empty()) << "its blocks are still being written";
  EXPECT_EQ(second->blocks.size(), 2);
  EXPECT_TRUE(scheduler_->OnTransferEnd(*second));
  EXPECT_EQ(Step().chunks.size(), 1u);
  // A cancel while the writer still writes: gone, with its end.
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

TEST_F(SchedulerTest, HigherPriorityEntersFirstAndGivesWayLast) {
  Make(4, {}, false);
  ASSERT_TRUE(Submit(1, {.max_tokens = 40, .priority = Priority::kLow}).ok());
  ASSERT_TRUE(Submit(2, {.max_tokens = 40}).ok());
  ASSERT_TRUE(Submit(3, {.max_tokens = 40, .priority = Priority::kHigh}).ok());
  for (const uint64_t id : {3, 2}) {
    Sequence* sequence = scheduler_->Admit();
    ASSERT_EQ(sequence->id, id);
    Commit(*sequence);
  }
  for (int i = 0; i < 17; ++i) Step();
  EXPECT_EQ(preempted_, std::vector<uint64_t>{2});
}

TEST_F(SchedulerTest, LongRequestsDoNotCrowdOutShortOnes) {
  Make(20, {.long_context_tokens = 50, .long_context_share = 0.5});
  for (const uint64_t id : {1, 2}) ASSERT_TRUE(Submit(id, {.prompt = 100}).ok());  // 7 blocks each
  ASSERT_TRUE(Submit(3, {.prompt = 30}).ok());
  EXPECT_EQ(scheduler_->Admit()->id, 1u);
  Sequence* next = scheduler_->Admit();  // the second long one would take more than half
  ASSERT_NE(next, nullptr);
  EXPECT_EQ(next->id, 3u);
  EXPECT_EQ(scheduler_->Admit(), nullptr);
  // A lone long one enters however much it takes.
  scheduler_->Evict(*scheduler_->Find(1), true);
  scheduler_->OnTransferEnd(*scheduler_->Find(1));
  EXPECT_EQ(scheduler_->Admit()->id, 2u);
}

TEST_F(SchedulerTest, SmallerLongRequestsDoNotPassOneThatWaits) {
  Make(40, {.long_context_tokens = 50, .long_context_share = 0.5});
  ASSERT_TRUE(Submit(1, {.prompt = 64}).ok());
  ASSERT_TRUE(Submit(2, {.prompt = 300}).ok());  // 19 blocks of the 20
  ASSERT_TRUE(Submit(3, {.prompt = 64, .priority = Priority::kLow}).ok());
  ASSERT_TRUE(Submit(4, {.prompt = 16, .priority = Priority::kLow}).ok());
  EXPECT_EQ(scheduler_->Admit()->id, 1u);
  EXPECT_EQ(scheduler_->Admit()->id, 4u) << "an ordinary one";
  EXPECT_EQ(scheduler_->Admit(), nullptr);
  Commit(*scheduler_->Find(1));
  scheduler_->Remove(*scheduler_->Find(1));
  EXPECT_EQ(scheduler_->Admit()->id, 2u);
}

TEST_F(SchedulerTest, AnswersThatGrowLongKeepToTheShareOfLongRequests) {
  Make(20, {.long_context_tokens = 50, .long_context_share = 0.5}, false);
  for (const uint64_t id : {1, 2}) ASSERT_TRUE(Submit(id, {.prompt = 30, .max_tokens = 150}).ok());
  for (int i = 0; i < 2; ++i) Commit(*scheduler_->Admit());
  while (preempted_.empty()) {
    Step();
    ASSERT_LT(scheduler_->Find(1)->tokens.size(), 100u);
  }
  // Five blocks each are half of the pool: free ones are left when the second gives way.
  EXPECT_EQ(preempted_, std::vector<uint64_t>{2});
  EXPECT_GE(pool_->counts().free, 10);
  EXPECT_EQ(scheduler_->Admit(), nullptr) << "the share is taken";
  while (finished_.empty()) Step();  // alone, it may take more
  EXPECT_EQ(scheduler_->Admit()->id, 2u);
}

TEST_F(SchedulerTest, HigherPriorityDisplacesLowerOnes) {
  Make(6, {}, false);
  for (const uint64_t id : {1, 2}) {
    ASSERT_TRUE(Submit(id, {.prompt = 32, .max_tokens = 9, .priority = Priority::kLow}).ok());
    Commit(*scheduler_->Admit());
    Step();  // three blocks each
  }
  ASSERT_TRUE(Submit(3, {.prompt = 16, .max_tokens = 2, .priority = Priority::kLow}).ok());
  EXPECT_EQ(scheduler_->Admit(), nullptr) << "its own rank it does not displace";
  ASSERT_TRUE(Submit(4, {.prompt = 32, .max_tokens = 2}).ok());
  EXPECT_EQ(scheduler_->Admit()->id, 4u);
  EXPECT_EQ(preempted_, std::vector<uint64_t>{2}) << "no more than needed";
  ASSERT_TRUE(Submit(5, {.prompt = 80, .max_tokens = 2, .priority = Priority::kNormal}).ok());
  EXPECT_EQ(scheduler_->Admit(), nullptr);
  EXPECT_EQ(preempted_.size(), 1u) << "all lower ones together would not make room";
  Check();
}

TEST_F(SchedulerTest, ADisplacedTransferGivesItsBlocksWhenItsWriterHasStopped) {
  Make(4, {}, false);
  ASSERT_TRUE(Submit(1, {.prompt = 64, .priority = Priority::kLow}).ok());
  Sequence* low = scheduler_->Admit();
  ASSERT_TRUE(Submit(2, {.prompt = 32, .priority = Priority::kHigh}).ok());
  EXPECT_EQ(scheduler_->Admit(), nullptr);
  EXPECT_EQ(cancelled_, std::vector<uint64_t>{1});
  EXPECT_EQ(scheduler_->Admit(), nullptr);
  EXPECT_EQ(cancelled_.size(), 1u);
  EXPECT_TRUE(scheduler_->OnTransferEnd(*low));
  EXPECT_EQ(scheduler_->Admit()->id, 2u);
}

// Whoever waits may fit into what the last in rank gave up: the loop must look again.
TEST_F(SchedulerTest, AStepThatOnlyPreemptsSaysSo) {
  Make(4, {}, false);
  ASSERT_TRUE(Submit(1, {.prompt = 32}).ok());
  ASSERT_EQ(scheduler_->Admit()->state, State::kReceiving);
  ASSERT_TRUE(Submit(2, {.prompt = 16, .max_tokens = 30, .remote = false}).ok());
  ASSERT_NE(scheduler_->Admit(), nullptr);
  StepPlan plan;
  while (preempted_.empty()) plan = Step();
  EXPECT_TRUE(plan.chunks.empty());
  EXPECT_TRUE(plan.preempted);
  EXPECT_FALSE(Step().preempted);
}

TEST_F(SchedulerTest, WhatWaitsIsCountedByPriority) {
  Make(10);
  ASSERT_TRUE(Submit(1, {.prompt = 100, .priority = Priority::kLow}).ok());
  ASSERT_TRUE(Submit(2, {.prompt = 30}).ok());
  ASSERT_TRUE(Submit(3, {.prompt = 7, .priority = Priority::kHigh}).ok());
  EXPECT_EQ(scheduler_->waiting_tokens(Priority::kHigh), 7);
  EXPECT_EQ(scheduler_->waiting_tokens(Priority::kNormal), 37);
  EXPECT_EQ(scheduler_->waiting_tokens(), 137);
}

// A search with one beam left may have all of them again in the next step.
TEST_F(SchedulerTest, ASearchKeepsThePlacesOfAllItsBeams) {
  Make(40, {.max_num_seqs = 5, .max_num_batched_tokens = 64}, false);
  auto request = Request(1, {.prompt = 16, .max_tokens = 40, .remote = false});
  BeamSearch::Options beam_options;
  beam_options.width = 4;
  beam_options.max_tokens = 40;
  request->call->beams = std::make_shared<BeamSearch>(beam_options);
  ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
  Sequence* only = scheduler_->Admit();
  ASSERT_NE(only, nullptr);
  std::vector<model::SampledToken> proposed(1);
  proposed[0].token_id = 7;
  proposed[0].score = -0.1f;
  only->call->beams->Advance({proposed});
  ASSERT_TRUE(only->call->beams->started());
  for (const uint64_t id : {2, 3}) ASSERT_TRUE(Submit(id, {}).ok());
  EXPECT_EQ(scheduler_->Admit()->id, 2u);
  EXPECT_EQ(scheduler_->Admit(), nullptr);
}

TEST_F(SchedulerTest, BoundsRefuseWithAReason) {
  SchedulerOptions options;
  options.max_queued_requests = 2;
  options.max_queued_tokens = 100;
  options.max_tenant_requests = 1;
  Make(4, options);
  EXPECT_EQ(ErrorReason(Submit(1, {.prompt = 64, .max_tokens = 2})), "KV_POOL_TOO_SMALL");
  ASSERT_TRUE(Submit(2, {.prompt = 64, .tenant = "a"}).ok());
  EXPECT_EQ(ErrorReason(Submit(3, {.tenant = "a"})), "TENANT_LIMIT");
  EXPECT_EQ(ErrorReason(Submit(3, {.prompt = 60, .tenant = "b"})), "QUEUE_FULL");
  ASSERT_TRUE(Submit(4, {.tenant = "b"}).ok());
  EXPECT_EQ(ErrorReason(Submit(5, {.tenant = "c"})), "QUEUE_FULL");
  // A tenant's place is free again when its request is gone.
  scheduler_->Remove(*scheduler_->Find(2));
  EXPECT_TRUE(Submit(6, {.tenant = "a"}).ok());
  Check();
}

TEST_F(SchedulerTest, BeamsThatLoseTheirBlocksStartAnew) {
  Make(9, {.max_num_seqs = 8, .max_num_batched_tokens = 64}, false);
  ASSERT_TRUE(Submit(1, {.prompt = 16, .max_tokens = 100, .remote = false}).ok());
  scheduler_->Admit();
  Step();
  auto request = Request(2, {.prompt = 20, .max_tokens = 40, .remote = false});
  BeamSearch::Options beam_options;
  beam_options.width = 2;
  beam_options.max_tokens = 40;
  request->call->beams = std::make_shared<BeamSearch>(beam_options);
  const std::shared_ptr<Call> call = request->call;
  ASSERT_TRUE(scheduler_->Submit(std::move(request)).ok());
  Sequence* leader = scheduler_->Admit();
  for (const Chunk& chunk : scheduler_->PlanStep().chunks) scheduler_->Computed(chunk);
  scheduler_->Find(1)->tokens.push_back(3);
  // Two beams from the prompt, as the loop makes them.
  std::vector<model::SampledToken> proposed(4);
  for (int i = 0; i < 4; ++i) {
    proposed[static_cast<size_t>(i)].token_id = 7 + i;
    proposed[static_cast<size_t>(i)].score = -0.1f * static_cast<float>(i + 1);
  }
  const auto steps = call->beams->Advance({proposed});
  ASSERT_EQ(steps.size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    auto beam = std::make_unique<Sequence>();
    beam->id = 20 + i;
    beam->call = call;
    beam->tokens = leader->tokens;
    beam->sampling.choice = 2 + i;
    scheduler_->Fork(*leader, std::move(beam))->tokens.push_back(steps[i].token_id);
  }
  scheduler_->Remove(*leader);
  Check();
  while (preempted_.empty()) {
    const StepPlan plan = scheduler_->PlanStep();
    Check();
    for (const Chunk& chunk : plan.chunks) {
      scheduler_->Computed(chunk);
      chunk.sequence->tokens.push_back(11);
    }
    ASSERT_LT(scheduler_->Find(1)->tokens.size(), 130u);
  }
  EXPECT_EQ(preempted_.size(), 1u);
  const std::vector<Sequence*> left = scheduler_->SequencesOf(*call);
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0]->tokens.size(), 20u);
  EXPECT_EQ(left[0]->state, State::kWaiting);
  EXPECT_FALSE(call->beams->started());
  Check();
}

// Random requests, commits, lost transfers, cancels and steps through a pool that is always too
// small: accounts add up after every action, and everything ends.
TEST_F(SchedulerTest, RandomHistoriesAddUpAndEnd) {
  const uint32_t base = std::random_device()();
  std::cout << "seeds from " << base << std::endl;  // a broken invariant ends the process
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
