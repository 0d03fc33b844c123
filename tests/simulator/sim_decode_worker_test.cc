#include "simulator/sim_decode_worker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "simulator/load_generator.h"

namespace baton::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Prompt and answer of each request; they share nothing.
Trace Alone(const std::vector<std::pair<int, int>>& requests) {
  Trace trace;
  trace.name = "alone";
  for (const auto& [prompt, answer] : requests) {
    SimRequest& r = trace.requests.emplace_back();
    r.prompt_tokens = prompt;
    r.output_tokens = answer;
  }
  return trace;
}

DecodeWorkerShape Exact(int kv_blocks = 1000) {
  DecodeWorkerShape shape;
  shape.cost = {10'000, 100, 2};
  shape.noise = 0;
  shape.kv_blocks = kv_blocks;
  return shape;
}

// A worker whose KV comes at once, step by step.
class Driven {
 public:
  Driven(const Trace& trace, const DecodeWorkerShape& shape) : worker_(trace, shape, 1) {
    worker_.Start();
  }
  SimDecodeWorker& operator*() { return worker_; }
  SimDecodeWorker* operator->() { return &worker_; }

  void Accept(int request, bool here = false) { worker_.Accept(request, 0, now_us_, here); }
  std::vector<SimDecodeWorker::Entered> Admit() {
    auto entered = worker_.Admit(now_us_);
    for (const auto& e : entered) {
      if (!e.here) worker_.Arrive(e.request);
    }
    worker_.CheckIntegrity();
    return entered;
  }
  // What the next step takes; 0: nothing runs.
  int64_t StepUs() {
    const int64_t end_us = worker_.Begin(now_us_);
    worker_.CheckIntegrity();
    if (end_us < 0) return 0;
    const int64_t took_us = end_us - now_us_;
    now_us_ = end_us;
    last_ = worker_.End(now_us_);
    worker_.CheckIntegrity();
    return took_us;
  }
  const SimDecodeWorker::Step& last() const { return last_; }
  int64_t now_us() const { return now_us_; }

 private:
  SimDecodeWorker worker_;
  SimDecodeWorker::Step last_;
  int64_t now_us_ = 0;
};

TEST(SimDecodeWorkerTest, StepsTakeWhatSequencesAndContextCost) {
  const Trace trace = Alone({{100, 4}, {200, 3}});
  Driven worker(trace, Exact());
  EXPECT_EQ(worker.StepUs(), 0) << "nothing runs";
  worker.Accept(0);
  EXPECT_EQ(worker.Admit()[0].missing_tokens, 100);
  EXPECT_EQ(worker.StepUs(), 10'000 + 100 + 2 * 100);
  worker.Accept(1);
  worker.Admit();
  EXPECT_EQ(worker.StepUs(), 10'000 + 2 * 100 + 2 * (101 + 200));
  EXPECT_EQ(worker.last().sequences, 2);
  ASSERT_EQ(worker.last().joined.size(), 1u);
  EXPECT_EQ(worker.last().joined[0].request, 1);
  EXPECT_EQ(worker.last().joined[0].last_token_us, -1);
  EXPECT_EQ(worker.StepUs(), 10'000 + 2 * 100 + 2 * (102 + 201));
  EXPECT_THAT(worker.last().ended, ElementsAre(0, 1)) << "after 3 and 2 steps: the first token "
                                                         "of each comes with its prompt";
  EXPECT_EQ(worker.StepUs(), 0);
  EXPECT_EQ(worker->free_blocks(), 1000);
}

TEST(SimDecodeWorkerTest, PromptsComputedHereShareSteps) {
  const Trace trace = Alone({{100, 20}, {1000, 3}});
  DecodeWorkerShape shape = Exact();
  shape.prompt_cost = {5000, 100, 0};
  Driven worker(trace, shape);
  worker.Accept(0);
  worker.Admit();
  EXPECT_EQ(worker.StepUs(), 10'100 + 2 * 100);
  worker.Accept(1, /*here=*/true);
  EXPECT_TRUE(worker.Admit()[0].here);
  // The larger fixed part, an answer, and as many tokens of the prompt as the budget has, which
  // doubles; the last chunk has the rest.
  int context = 101;
  for (int tokens : {64, 128, 256, 512}) {
    EXPECT_EQ(worker.StepUs(), 10'100 + 2 * context++ + 100 * tokens);
    EXPECT_EQ(worker->started().size(), tokens == 64 ? 1u : 0u);
    EXPECT_EQ(worker.last().sequences, 1);
    EXPECT_THAT(worker.last().computed, IsEmpty());
  }
  EXPECT_EQ(worker.StepUs(), 10'100 + 2 * context++ + 100 * 40);
  EXPECT_THAT(worker.last().computed, ElementsAre(1));
  EXPECT_EQ(worker.StepUs(), 10'200 + 2 * (context++ + 1000)) << "it answers";
  EXPECT_EQ(worker.last().joined[0].request, 1);
  worker.StepUs();
  EXPECT_THAT(worker.last().ended, ElementsAre(1));
}

TEST(SimDecodeWorkerTest, APromptAloneTakesWhatPromptsCost) {
  const Trace trace = Alone({{64, 2}});
  DecodeWorkerShape shape = Exact();
  shape.prompt_cost = {5000, 100, 1};
  shape.computes_prompts = true;
  Driven worker(trace, shape);
  worker.Accept(0, /*here=*/true);
  worker.Admit();
  EXPECT_EQ(worker->Load(0).remaining_work_us(), 5000 + 6400 + 64 * 32);
  EXPECT_EQ(worker->Load(0).prefill_cost().token_us(), 100);
  EXPECT_EQ(worker.StepUs(), 5000 + 6400 + 64 * 32);
  EXPECT_EQ(worker.last().sequences, 0);
  EXPECT_EQ(worker->Load(0).remaining_work_us(), 0);
  EXPECT_EQ(worker.StepUs(), 10'100 + 2 * 64);
  EXPECT_THAT(worker.last().ended, ElementsAre(0));
}

TEST(SimDecodeWorkerTest, SlowAndColdStepsTakeLonger) {
  const Trace trace = Alone({{100, 100}});
  SimDecodeWorker worker(trace, Exact(), 1);
  worker.Start(/*cold_steps=*/2, /*cold_step_us=*/1'000'000);
  worker.Accept(0, 0, 0);
  worker.Arrive(worker.Admit(0)[0].request);
  int64_t now_us = 0;
  const auto step = [&] {
    const int64_t end_us = worker.Begin(now_us), took_us = end_us - now_us;
    worker.End(now_us = end_us);
    return took_us;
  };
  EXPECT_EQ(step(), 1'000'000);
  EXPECT_EQ(step(), 1'000'000);
  EXPECT_EQ(step(), 10'100 + 2 * 102);
  worker.SetSlowness(3);
  EXPECT_EQ(step(), 3 * (10'100 + 2 * 103));
  worker.SetSlowness(1);
  EXPECT_EQ(step(), 10'100 + 2 * 104);
}

TEST(SimDecodeWorkerTest, NoiseIsWithinItsBoundsAndOfTheSeed) {
  const Trace trace = Alone({{100, 400}});
  DecodeWorkerShape shape = Exact();
  shape.noise = 0.05;
  std::vector<double> ratios[3];
  for (uint64_t seed : {0, 1, 2}) {
    SimDecodeWorker worker(trace, shape, seed == 2 ? 1 : seed);
    worker.Start();
    worker.Accept(0, 0, 0);
    worker.Arrive(worker.Admit(0)[0].request);
    int64_t now_us = 0;
    for (int i = 0; i < 300; ++i) {
      const int64_t end_us = worker.Begin(now_us);
      ratios[seed].push_back(static_cast<double>(end_us - now_us) / (10'100 + 2 * (100 + i)));
      worker.End(now_us = end_us);
    }
  }
  EXPECT_EQ(ratios[1], ratios[2]);
  EXPECT_NE(ratios[0], ratios[1]);
  const auto [low, high] = std::minmax_element(ratios[0].begin(), ratios[0].end());
  EXPECT_GE(*low, 0.949);
  EXPECT_LE(*high, 1.051);
  EXPECT_LT(*low, 0.97);
  EXPECT_GT(*high, 1.03);
}

TEST(SimDecodeWorkerTest, WaitsInOrderForSlotsAndBlocks) {
  const Trace trace = Alone({{160, 3}, {160, 20}, {480, 20}, {16, 20}});
  DecodeWorkerShape shape = Exact(/*kv_blocks=*/40);
  shape.max_num_seqs = 3;
  Driven worker(trace, shape);
  for (int request : {0, 1, 2, 3}) worker.Accept(request);
  EXPECT_EQ(worker.Admit().size(), 2u) << "no 30 blocks are left for the third";
  EXPECT_EQ(worker->queued(), 2) << "and the fourth, which would fit, stands behind it";
  EXPECT_EQ(worker->Load(0).queued_tokens(), 496);
  worker.StepUs();
  EXPECT_THAT(worker.Admit(), IsEmpty());
  worker.StepUs();
  EXPECT_THAT(worker.last().ended, ElementsAre(0));
  EXPECT_THAT(worker.Admit(), IsEmpty()) << "11 and 30 are more than 40";
  while (worker->sequences() == 3) worker.StepUs();
  const auto entered = worker.Admit();
  ASSERT_EQ(entered.size(), 2u);
  EXPECT_EQ(entered[0].request, 2);
  EXPECT_EQ(entered[0].waited_us, worker.now_us());
  EXPECT_FALSE(entered[0].preempted);
}

// Two that begin with 10 blocks each can't both end with 17 of 24.
TEST(SimDecodeWorkerTest, TheYoungestGivesItsBlocksUpAndComesBackFirst) {
  const Trace trace = Alone({{160, 100}, {160, 100}, {16, 2}});
  Driven worker(trace, Exact(/*kv_blocks=*/24));
  worker.Accept(0);
  worker.Admit();
  worker.StepUs();
  worker.Accept(1);
  worker.Admit();
  int steps = 0;
  for (; worker->preemptions() == 0; ++steps) worker.StepUs();
  worker.Accept(2);
  // With 12 blocks each, and the older one 192 tokens, which are 12 blocks: 31 steps of both, and
  // the first one of one.
  EXPECT_EQ(steps, 32);
  EXPECT_EQ(worker.last().sequences, 1);
  EXPECT_EQ(worker->queued(), 2);
  EXPECT_THAT(worker.Admit(), IsEmpty()) << "it takes 12, and of the other 13";
  const int64_t preempted_us = worker.now_us();
  int64_t last_us = 0;
  while (worker.Admit().empty()) {
    worker.StepUs();
    last_us = worker.now_us();
  }
  EXPECT_THAT(worker.last().ended, ElementsAre(0));
  EXPECT_GT(last_us, preempted_us);
  worker.StepUs();
  ASSERT_EQ(worker.last().joined.size(), 2u);
  EXPECT_EQ(worker.last().joined[0].request, 1) << "ahead of the one that was never inside";
  EXPECT_LT(worker.last().joined[0].last_token_us, preempted_us);
  EXPECT_GT(worker.last().joined[0].last_token_us, 0);
  EXPECT_EQ(worker.last().joined[1].last_token_us, -1);
  EXPECT_THAT(worker.last().ended, ElementsAre(2));
  // It has had the first token, 31 steps, and this one.
  for (int left = 100 - 1 - 31 - 1; left > 0; --left) worker.StepUs();
  EXPECT_THAT(worker.last().ended, ElementsAre(1));
  EXPECT_EQ(worker->free_blocks(), 24);
}

TEST(SimDecodeWorkerTest, AConversationFindsWhatItLeft) {
  Trace trace;
  trace.block_count = 6;
  trace.requests.resize(2);
  trace.requests[0] = {0, 1100, {0, 1}, 500, {2}};
  trace.requests[1] = {0, 2100, {0, 1, 2, 3}, 10, {}};
  Driven worker(trace, Exact());
  worker.Accept(0);
  EXPECT_EQ(worker.Admit()[0].missing_tokens, 1100);
  internal::v1::CacheDelta delta;
  EXPECT_FALSE(worker->TakeDelta(&delta));
  for (int i = 0; i < 499; ++i) worker.StepUs();
  EXPECT_THAT(worker.last().ended, ElementsAre(0));
  ASSERT_TRUE(worker->TakeDelta(&delta));
  EXPECT_EQ(delta.sequence(), 1u);
  std::set<int> told;
  for (uint64_t key : delta.added()) told.insert(BlockOfKey(key) / kKvBlocksPerSimBlock);
  EXPECT_THAT(told, ElementsAre(0, 1, 2));
  EXPECT_EQ(delta.added_size(), 3 * kKvBlocksPerSimBlock);
  EXPECT_EQ(worker->cached_blocks(), 3 * kKvBlocksPerSimBlock);
  EXPECT_EQ(worker->Load(0).free_blocks(), 1000) << "free or evictable";
  worker.Accept(1);
  const auto entered = worker.Admit();
  EXPECT_EQ(entered[0].context_tokens, 2100);
  EXPECT_EQ(entered[0].missing_tokens, 2100 - 3 * kSimBlockTokens);
  EXPECT_EQ(worker->active_blocks(), KvBlocks(2100) - 3 * kKvBlocksPerSimBlock);
  EXPECT_EQ(worker->Load(0).free_blocks(), 1000 - KvBlocks(2100)) << "what is used stays";
}

TEST(SimDecodeWorkerTest, TellsLoadAndWhatItsStepsTake) {
  const Trace trace = Alone({{100, 50}, {200, 50}, {300, 50}});
  DecodeWorkerShape shape = Exact();
  shape.device = "this kind";
  shape.max_num_seqs = 2;
  Driven worker(trace, shape);
  EXPECT_EQ(worker->Card("d").device(), "this kind");
  EXPECT_EQ(worker->Card("d").max_num_seqs(), 2);
  EXPECT_FALSE(worker->Load(0).has_decode_cost()) << "nothing was measured";
  for (int request : {0, 1, 2}) worker.Accept(request);
  worker.Admit();
  internal::v1::LoadReport load = worker->Load(worker.now_us());
  EXPECT_EQ(load.running(), 2) << "those whose KV is on its way included";
  EXPECT_EQ(load.queued(), 1);
  EXPECT_EQ(load.context_tokens(), 300);
  EXPECT_EQ(load.free_blocks(), 1000 - 7 - 13);
  worker->SetSlowness(2);
  for (int i = 0; i < 10; ++i) worker.StepUs();
  load = worker->Load(worker.now_us());
  EXPECT_EQ(load.context_tokens(), 320);
  EXPECT_FALSE(load.has_decode_cost()) << "ten steps less those of the warm-up are too few";
  for (int i = 0; i < 10; ++i) worker.StepUs();
  load = worker->Load(worker.now_us());
  ASSERT_TRUE(load.has_decode_cost());
  const auto& cost = load.decode_cost();
  const double context = cost.measured().context_tokens() / cost.measured().steps();
  EXPECT_NEAR(context, 320, 10);
  EXPECT_NEAR(cost.measured().sequences() / cost.measured().steps(), 2, 1e-9);
  EXPECT_NEAR(cost.fixed_us() + 2 * cost.sequence_us() + context * cost.context_token_us(),
              2 * (10'200 + 2 * context), 50);
  EXPECT_NEAR(cost.measured().seconds() / cost.measured().steps(), 2e-6 * (10'200 + 2 * context),
              50e-6);
}

TEST(SimDecodeWorkerTest, AKilledOneReturnsAllThatItHad) {
  const Trace trace = Alone({{100, 50}, {200, 50}, {300, 50}});
  DecodeWorkerShape shape = Exact();
  shape.max_num_seqs = 2;
  Driven worker(trace, shape);
  worker.Accept(0);
  worker.Admit();
  worker.StepUs();
  worker.StepUs();
  for (int request : {1, 2}) worker.Accept(request);
  worker->Admit(worker.now_us());  // its KV does not come
  std::map<int, SimDecodeWorker::Lost> lost;
  for (const auto& l : worker->Kill()) lost[l.request] = l;
  ASSERT_EQ(lost.size(), 3u);
  EXPECT_EQ(lost[0].generated_tokens, 3);
  EXPECT_EQ(lost[0].last_token_us, worker.now_us());
  EXPECT_EQ(lost[1].generated_tokens, 0);
  EXPECT_EQ(lost[2].last_token_us, -1);
  const uint64_t epoch = worker->epoch();
  worker->Start();
  worker->CheckIntegrity();
  EXPECT_NE(worker->epoch(), epoch);
  EXPECT_EQ(worker->sequences(), 0);
  EXPECT_EQ(worker->free_blocks(), 1000);
  // It goes on where it was.
  worker->Accept(0, 3, worker.now_us());
  EXPECT_EQ(worker.Admit()[0].context_tokens, 102);
  for (int i = 0; i < 46; ++i) worker.StepUs();
  EXPECT_THAT(worker.last().ended, IsEmpty());
  worker.StepUs();
  EXPECT_THAT(worker.last().ended, ElementsAre(0));
}

// Conversations that come back through pools in which few of them fit.
TEST(SimDecodeWorkerTest, BlocksAddUpThroughRandomHistories) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    LoadShape of_load;
    of_load.requests = 60;
    of_load.mean_gap_s = 2;
    of_load.seed = seed;
    const Trace trace = SessionLoad(of_load);
    DecodeWorkerShape shape = Exact(/*kv_blocks=*/1000 + 100 * static_cast<int>(seed));
    shape.max_num_seqs = 16;
    Driven worker(trace, shape);
    SimRandom random(seed);
    std::set<int32_t> told;
    const int requests = static_cast<int>(trace.requests.size());
    int next = 0, ended = 0;
    const auto take_delta = [&] {
      internal::v1::CacheDelta delta;
      if (!worker->TakeDelta(&delta)) return;
      for (uint64_t key : delta.removed()) ASSERT_EQ(told.erase(BlockOfKey(key)), 1u);
      for (uint64_t key : delta.added()) ASSERT_TRUE(told.insert(BlockOfKey(key)).second);
      ASSERT_EQ(static_cast<int>(told.size()), worker->cached_blocks());
    };
    while (ended < requests) {
      if (next < requests && random.Below(12) == 0) worker.Accept(next++, random.Below(2) == 0);
      worker.Admit();
      take_delta();
      worker.StepUs();
      take_delta();
      ended += static_cast<int>(worker.last().ended.size());
      if (worker->sequences() == 0 && next < requests) worker.Accept(next++);
      ASSERT_LT(worker.now_us(), int64_t{4'000'000'000}) << "nothing ends";
    }
    EXPECT_EQ(worker->active_blocks(), 0);
    EXPECT_GT(worker->cached_blocks(), 0);
  }
}

}  // namespace
}  // namespace baton::simulator
