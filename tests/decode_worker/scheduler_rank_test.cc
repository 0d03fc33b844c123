// Who enters, who waits and who gives way: ranks, priorities, shares and bounds.
#include <memory>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "tests/decode_worker/scheduler_harness.h"

namespace baton::decode_worker {
namespace {

using SchedulerRankTest = SchedulerHarness;

TEST_F(SchedulerRankTest, TheLastInRankGivesWayAndComesBackFirst) {
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

TEST_F(SchedulerRankTest, AReceivingOneGivesWayWhenItsWriterHasStopped) {
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

TEST_F(SchedulerRankTest, HigherPriorityEntersFirstAndGivesWayLast) {
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

TEST_F(SchedulerRankTest, LongRequestsDoNotCrowdOutShortOnes) {
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

TEST_F(SchedulerRankTest, SmallerLongRequestsDoNotPassOneThatWaits) {
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

TEST_F(SchedulerRankTest, AnswersThatGrowLongKeepToTheShareOfLongRequests) {
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

TEST_F(SchedulerRankTest, HigherPriorityDisplacesLowerOnes) {
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

TEST_F(SchedulerRankTest, ADisplacedTransferGivesItsBlocksWhenItsWriterHasStopped) {
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
TEST_F(SchedulerRankTest, AStepThatOnlyPreemptsSaysSo) {
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

TEST_F(SchedulerRankTest, WhatWaitsIsCountedByPriority) {
  Make(10);
  ASSERT_TRUE(Submit(1, {.prompt = 100, .priority = Priority::kLow}).ok());
  ASSERT_TRUE(Submit(2, {.prompt = 30}).ok());
  ASSERT_TRUE(Submit(3, {.prompt = 7, .priority = Priority::kHigh}).ok());
  Call call;
  call.priority = Priority::kHigh;
  EXPECT_EQ(scheduler_->waiting_tokens_ahead(call), 7);
  call.priority = Priority::kNormal;
  EXPECT_EQ(scheduler_->waiting_tokens_ahead(call), 37);
  EXPECT_EQ(scheduler_->waiting_tokens(), 137);
}

TEST_F(SchedulerRankTest, BeforeAContinuationStandNoNewRequestsOfItsPriority) {
  Make(10);
  ASSERT_TRUE(Submit(1, {.prompt = 30}).ok());
  ASSERT_TRUE(Submit(2, {.prompt = 7, .priority = Priority::kHigh}).ok());
  ASSERT_TRUE(Submit(3, {.prompt = 11, .continuation = true}).ok());
  ASSERT_TRUE(Submit(4, {.prompt = 100, .priority = Priority::kLow, .continuation = true}).ok());
  Call call;
  EXPECT_EQ(scheduler_->waiting_tokens_ahead(call), 48);
  call.continuation = true;
  EXPECT_EQ(scheduler_->waiting_tokens_ahead(call), 18);
  call.priority = Priority::kHigh;
  EXPECT_EQ(scheduler_->waiting_tokens_ahead(call), 0);
  call.priority = Priority::kLow;
  EXPECT_EQ(scheduler_->waiting_tokens_ahead(call), 148);
  EXPECT_EQ(scheduler_->waiting_tokens(), 148);
  Check();
  while (Sequence* sequence = scheduler_->Find(3)) scheduler_->Remove(*sequence);
  EXPECT_EQ(scheduler_->waiting_tokens(), 137);
  Check();
}

TEST_F(SchedulerRankTest, ContinuationsEnterByPriorityThenBeforeNewOnesThenByAge) {
  Make(64, {.max_num_seqs = 1});
  ASSERT_TRUE(Submit(1, {.tenant = "a"}).ok());
  ASSERT_TRUE(Submit(2, {.tenant = "a", .continuation = true}).ok());
  ASSERT_TRUE(Submit(3, {.priority = Priority::kLow, .continuation = true}).ok());
  ASSERT_TRUE(Submit(4, {.tenant = "b", .continuation = true}).ok());
  ASSERT_TRUE(Submit(5, {.priority = Priority::kHigh}).ok());
  ASSERT_TRUE(Submit(6, {.priority = Priority::kLow}).ok());
  ASSERT_TRUE(Submit(7, {.priority = Priority::kHigh, .continuation = true}).ok());
  std::vector<uint64_t> entered;
  while (Sequence* sequence = scheduler_->Admit()) {
    entered.push_back(sequence->id);
    Commit(*sequence);
    Check();
    scheduler_->Remove(*sequence);
  }
  EXPECT_EQ(entered, (std::vector<uint64_t>{7, 5, 2, 4, 1, 3, 6}));
}

TEST_F(SchedulerRankTest, APreemptedAnswerComesBackBeforeAContinuationThatCameLater) {
  Make(4, {}, false);
  ASSERT_TRUE(Submit(1, {.prompt = 32, .max_tokens = 32, .remote = false}).ok());
  ASSERT_NE(scheduler_->Admit(), nullptr);
  ASSERT_TRUE(Submit(2, {.prompt = 16, .max_tokens = 32, .remote = false}).ok());
  ASSERT_NE(scheduler_->Admit(), nullptr);
  ASSERT_TRUE(Submit(3, {.remote = false, .continuation = true}).ok());
  ASSERT_EQ(scheduler_->Admit(), nullptr);
  ASSERT_TRUE(Submit(4, {.remote = false}).ok());
  while (preempted_.empty()) Step();
  ASSERT_EQ(preempted_, std::vector<uint64_t>{2});
  std::vector<uint64_t> entered;
  for (int steps = 0; entered.size() < 3; ++steps) {
    ASSERT_LT(steps, 200);
    while (Sequence* sequence = scheduler_->Admit()) entered.push_back(sequence->id);
    Step();
  }
  EXPECT_EQ(entered, (std::vector<uint64_t>{2, 3, 4}));
}

// A search with one beam left may have all of them again in the next step.
TEST_F(SchedulerRankTest, ASearchKeepsThePlacesOfAllItsBeams) {
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

TEST_F(SchedulerRankTest, BoundsRefuseWithAReason) {
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

TEST_F(SchedulerRankTest, AQueueThatIsFullForNewRequestsHasAsMuchRoomAgainForContinuations) {
  SchedulerOptions options;
  options.max_queued_requests = 2;
  options.max_queued_tokens = 100;
  options.max_tenant_requests = 2;
  options.max_tenant_tokens = 60;
  Make(64, options);
  ASSERT_TRUE(Submit(1, {.prompt = 20, .tenant = "a"}).ok());
  ASSERT_TRUE(Submit(2, {.prompt = 20, .tenant = "b"}).ok());
  EXPECT_EQ(ErrorReason(Submit(3, {.tenant = "c"})), "QUEUE_FULL");
  EXPECT_EQ(ErrorReason(Submit(3, {.prompt = 161, .continuation = true})), "QUEUE_FULL");
  ASSERT_TRUE(Submit(3, {.prompt = 60, .tenant = "a", .continuation = true}).ok());
  EXPECT_EQ(ErrorReason(Submit(4, {.prompt = 41, .tenant = "a", .continuation = true})),
            "TENANT_LIMIT")
      << "by tokens";
  ASSERT_TRUE(Submit(4, {.prompt = 1, .tenant = "a", .continuation = true}).ok());
  EXPECT_EQ(ErrorReason(Submit(5, {.prompt = 1, .continuation = true})), "QUEUE_FULL")
      << "by requests";
  EXPECT_EQ(ErrorReason(Submit(5, {.prompt = 1, .tenant = "a"})), "TENANT_LIMIT");
  // New ones find none while continuations have it.
  scheduler_->Remove(*scheduler_->Find(1));
  scheduler_->Remove(*scheduler_->Find(2));
  EXPECT_EQ(ErrorReason(Submit(6, {.prompt = 1})), "QUEUE_FULL");
  Check();
}

TEST_F(SchedulerRankTest, BeamsThatLoseTheirBlocksStartAnew) {
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

}  // namespace
}  // namespace baton::decode_worker
