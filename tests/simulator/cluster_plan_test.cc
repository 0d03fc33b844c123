#include "simulator/cluster_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "absl/strings/str_cat.h"
#include "simulator/load_generator.h"
#include "tests/testing/seed.h"

namespace baton::simulator {
namespace {

using ::testing::HasSubstr;

Trace Steady(int count, double gap_s, int prompt_tokens, int output_tokens) {
  Trace trace;
  trace.name = "steady";
  for (int i = 0; i < count; ++i) {
    trace.requests.push_back(
        {static_cast<int64_t>(i * gap_s * 1e6), prompt_tokens, {}, output_tokens, {}});
  }
  return trace;
}

// A prompt token takes 0.1 ms, and a step of n sequences 10 + n ms. Prefill workers compute all
// prompts.
ClusterQuestion Question() {
  ClusterQuestion question;
  question.scenario.cost = {0, 100, 0};
  question.scenario.prefill_step_tokens = 2048;
  question.scenario.slo_s = 0.5;
  question.scenario.slo_gap_s = 0.05;
  question.scenario.decode.shape.cost = {10'000, 1000, 0};
  question.scenario.decode.shape.noise = 0;
  question.link_bytes_per_second = 1e11;
  question.most_prefill = question.most_decode = 8;
  question.max_local_prefill_tokens = 0;
  return question;
}

ClusterPlan PlanOf(const Trace& trace, const ClusterQuestion& question) {
  absl::StatusOr<ClusterPlan> plan = PlanCluster(trace, question, nullptr);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

TEST(ClusterPlanTest, ArithmeticBoundsThePrefillWorkersFromBelow) {
  // 100 prompts of 0.1 s each in 9.9 s, and 0.5 s more: 9.9 s of work of 99 of them.
  ClusterQuestion question = Question();
  EXPECT_EQ(LeastPrefillWorkers(Steady(100, 0.1, 1000, 2), question.scenario), 1);
  EXPECT_EQ(LeastPrefillWorkers(Steady(100, 0.1, 4000, 2), question.scenario), 4);
  question.scenario.speed = 2;
  EXPECT_EQ(LeastPrefillWorkers(Steady(100, 0.1, 4000, 2), question.scenario), 8);
  // What the first prompt leaves in the cache is computed once.
  Trace shared = Steady(100, 0.1, 4000, 2);
  shared.block_count = 7;
  for (SimRequest& r : shared.requests) r.blocks = {0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(LeastPrefillWorkers(shared, Question().scenario), 1);
}

TEST(ClusterPlanTest, NoSizeBelowTheBoundHolds) {
  const Trace trace = Steady(200, 0.1, 3000, 8);
  const ClusterQuestion question = Question();
  const int least = LeastPrefillWorkers(trace, question.scenario);
  ASSERT_EQ(least, 3);
  EXPECT_FALSE(SimulateCluster(trace, question, least - 1, 8).first_token_holds);
  EXPECT_TRUE(SimulateCluster(trace, question, least + 1, 8).first_token_holds);
}

TEST(ClusterPlanTest, MoreWorkersAreNotSlower) {
  LoadShape load;
  load.requests = 600;
  load.mean_gap_s = 0.12;
  load.answer_end = 128;
  const Trace trace = PoissonLoad(load);
  const ClusterQuestion question = Question();
  double ttft_s = 1e9, gap_s = 1e9;
  for (int workers : {1, 2, 4, 8}) {
    const CellResult by_prefill = SimulateCluster(trace, question, workers, 8).result;
    EXPECT_LE(by_prefill.p99_ttft_s, ttft_s * 1.01) << workers;
    ttft_s = by_prefill.p99_ttft_s;
    const CellResult by_decode = SimulateCluster(trace, question, 8, workers).result;
    EXPECT_LE(by_decode.decode.p99_gap_s, gap_s * 1.01) << workers;
    gap_s = by_decode.decode.p99_gap_s;
  }
}

TEST(ClusterPlanTest, TheCheapestOfAllSizesIsFound) {
  LoadShape load;
  load.requests = 300;
  load.mean_gap_s = 0.08;
  load.prompt_end = 4096;
  load.answer_end = 128;
  const Trace trace = PoissonLoad(load);
  ClusterQuestion question = Question();
  question.most_prefill = question.most_decode = 6;
  for (const auto& [local_tokens, prefill_price, decode_price] :
       {std::tuple(0, 1.0, 1.0), std::tuple(0, 5.0, 1.0), std::tuple(0, 1.0, 5.0),
        std::tuple(16'384, 1.0, 1.0), std::tuple(16'384, 5.0, 1.0), std::tuple(16'384, 1.0, 5.0)}) {
    SCOPED_TRACE(absl::StrCat(local_tokens, " ", prefill_price, " ", decode_price));
    question.max_local_prefill_tokens = local_tokens;
    question.prefill_price = prefill_price;
    question.decode_price = decode_price;
    const int none = local_tokens > 0 ? 0 : 1;
    double cheapest = 1e9;
    for (int p = none; p <= 6; ++p) {
      for (int d = 1; d <= 6; ++d) {
        const ClusterCell cell = SimulateCluster(trace, question, p, d);
        if (cell.holds()) cheapest = std::min(cheapest, cell.price);
      }
    }
    ASSERT_LT(cheapest, 1e9);
    const ClusterPlan plan = PlanOf(trace, question);
    ASSERT_TRUE(plan.cheapest.has_value());
    const ClusterCell& best = plan.cells[*plan.cheapest];
    EXPECT_TRUE(best.holds());
    EXPECT_EQ(best.price, cheapest);
    EXPECT_EQ(best.price, best.prefill * prefill_price + best.decode * decode_price);
    // Both neighbours below were simulated.
    EXPECT_EQ(plan.without_prefill == Bottleneck::kNone, best.prefill == none);
    EXPECT_EQ(plan.without_decode == Bottleneck::kNone, best.decode == 1);
  }
}

TEST(ClusterPlanTest, WhatBindsIsNamed) {
  const ClusterQuestion question = Question();
  const auto at = [](const Trace& trace, const ClusterQuestion& q, int prefill, int decode) {
    return SimulateCluster(trace, q, prefill, decode);
  };
  EXPECT_EQ(at(Steady(100, 0.1, 3000, 4), question, 1, 4).first_token_bottleneck,
            Bottleneck::kPrefillQueue);
  EXPECT_EQ(at(Steady(20, 2, 8000, 4), question, 4, 4).first_token_bottleneck,
            Bottleneck::kPromptTime);
  ClusterQuestion slots = question;
  slots.scenario.decode.shape.max_num_seqs = 2;
  EXPECT_EQ(at(Steady(100, 0.1, 100, 100), slots, 4, 1).first_token_bottleneck,
            Bottleneck::kDecodeSlots);
  ClusterQuestion kv = question;
  kv.scenario.decode.shape.kv_blocks = 64;
  EXPECT_EQ(at(Steady(100, 0.1, 800, 100), kv, 4, 1).first_token_bottleneck, Bottleneck::kDecodeKv);
  const ClusterCell crowded = at(Steady(100, 0.02, 100, 200), question, 4, 1);
  EXPECT_FALSE(crowded.gap_holds);
  EXPECT_EQ(crowded.gap_bottleneck, Bottleneck::kBatch);
  ClusterQuestion slow_link = question;
  slow_link.link_bytes_per_second = 5e8;  // 128 KiB a token: 0.26 s for 1,000
  EXPECT_EQ(at(Steady(100, 0.5, 1000, 20), slow_link, 4, 4).gap_bottleneck, Bottleneck::kTransfer);
  const ClusterCell calm = at(Steady(100, 0.5, 1000, 20), question, 4, 4);
  EXPECT_TRUE(calm.holds()) << calm.result.decode.p99_gap_s;
  EXPECT_EQ(calm.first_token_bottleneck, Bottleneck::kNone);
}

TEST(ClusterPlanTest, OneWorkerLessFailsByWhatIsSaid) {
  const ClusterQuestion question = Question();
  const ClusterPlan plan = PlanOf(Steady(200, 0.1, 2500, 30), question);
  ASSERT_TRUE(plan.cheapest.has_value());
  const ClusterCell& best = plan.cells[*plan.cheapest];
  EXPECT_GE(best.prefill, plan.least_prefill);
  EXPECT_EQ(plan.without_prefill, Bottleneck::kPrefillQueue);
  EXPECT_GT(best.result.prefill_busy, 0.5);
  EXPECT_LE(best.result.prefill_busy, 1);
}

TEST(ClusterPlanTest, DecodeWorkersComputePromptsWhereThatIsCheaper) {
  ClusterQuestion question = Question();
  question.max_local_prefill_tokens = 16'384;
  // Alone, one decode worker does it all: each prompt takes 50 ms.
  const Trace light = Steady(50, 1, 500, 20);
  const ClusterCell alone = SimulateCluster(light, question, 0, 1);
  EXPECT_EQ(alone.result.unanswered, 0);
  EXPECT_NEAR(alone.result.p50_ttft_s, 0.05, 0.002);
  EXPECT_TRUE(alone.holds());
  const ClusterPlan plan = PlanOf(light, question);
  ASSERT_TRUE(plan.cheapest.has_value());
  EXPECT_EQ(plan.cells[*plan.cheapest].prefill, 0);
  EXPECT_EQ(plan.cells[*plan.cheapest].decode, 1);
  // A prefill worker beside it computes nothing, as the decode worker is idle and nothing moves.
  EXPECT_LT(SimulateCluster(light, question, 1, 1).result.prefill_busy, 0.01);
  question.max_local_prefill_tokens = 0;
  EXPECT_GT(SimulateCluster(light, question, 1, 1).result.prefill_busy, 0.03);
  // Long prompts beside answers make gaps.
  question.max_local_prefill_tokens = 16'384;
  const ClusterCell crowded = SimulateCluster(Steady(200, 0.2, 1500, 60), question, 0, 1);
  EXPECT_FALSE(crowded.gap_holds);
  EXPECT_EQ(crowded.gap_bottleneck, Bottleneck::kBatch);
}

TEST(ClusterPlanTest, ImpossibleObjectivesHaveNoSize) {
  ClusterQuestion question = Question();
  question.scenario.slo_gap_s = 0.005;  // below a step of one sequence
  const ClusterPlan plan = PlanOf(Steady(50, 0.1, 500, 20), question);
  EXPECT_FALSE(plan.cheapest.has_value());
  EXPECT_EQ(plan.cells.back().prefill, 8);
  EXPECT_EQ(plan.cells.back().decode, 8);
  EXPECT_EQ(plan.cells.back().gap_bottleneck, Bottleneck::kBatch);
}

TEST(ClusterPlanTest, EqualQuestionsHaveEqualAnswersOfBoundedSize) {
  LoadShape load;
  load.seed = testing::TestSeed();
  load.requests = 200;
  load.mean_gap_s = 0.1;
  const Trace trace = PoissonLoad(load);
  const ClusterQuestion question = Question();
  int told = 0;
  const absl::StatusOr<ClusterPlan> a =
      PlanCluster(trace, question, [&told](const ClusterCell&) { ++told; });
  const ClusterPlan b = PlanOf(trace, question);
  ASSERT_TRUE(a.ok()) << a.status();
  EXPECT_EQ(told, static_cast<int>(a->cells.size()));
  EXPECT_LE(told, question.most_prefill + question.most_decode + 30);
  ASSERT_EQ(a->cells.size(), b.cells.size());
  EXPECT_EQ(a->cheapest, b.cheapest);
  for (size_t i = 0; i < b.cells.size(); ++i) {
    EXPECT_EQ(a->cells[i].result.p99_ttft_s, b.cells[i].result.p99_ttft_s);
    EXPECT_EQ(a->cells[i].result.decode.p99_gap_s, b.cells[i].result.decode.p99_gap_s);
    EXPECT_GE(a->cells[i].result.goodput, 0);
    EXPECT_LE(a->cells[i].result.goodput, 1);
  }
}

TEST(ClusterPlanTest, RequestsThatFitNowhereAreAnError) {
  ClusterQuestion question = Question();
  EXPECT_THAT(std::string(CheckFits(Trace(), question.scenario).message()),
              HasSubstr("has no request"));
  question.scenario.decode.shape.kv_blocks = 10;
  const absl::Status decode = CheckFits(Steady(1, 1, 150, 20), question.scenario);
  EXPECT_EQ(decode.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(decode.message()), HasSubstr("request 1 of steady has 170 tokens"));
  Trace second = Steady(2, 1, 140, 20);
  second.requests[1].prompt_tokens = 150;
  EXPECT_THAT(std::string(CheckFits(second, question.scenario).message()),
              HasSubstr("request 2 of steady has 170 tokens"));
  EXPECT_TRUE(CheckFits(Steady(1, 1, 140, 20), question.scenario).ok());
  question.scenario.cache_blocks = 1;
  question.scenario.decode.shape.kv_blocks = 1000;
  EXPECT_THAT(std::string(CheckFits(Steady(1, 1, 600, 20), question.scenario).message()),
              HasSubstr("request 1 of steady has a prompt of 600 tokens, but a prefill worker's "
                        "pool holds 512"));
}

TEST(ClusterPlanTest, LoadsOfMoreThanAWeekAreRefused) {
  Scenario scenario = Question().scenario;
  const Trace week = Steady(2, kLongestLoad_s, 140, 20);
  EXPECT_TRUE(CheckFits(week, scenario).ok());
  const Trace longer = Steady(2, kLongestLoad_s + 1, 140, 20);
  const absl::Status refused = CheckFits(longer, scenario);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("steady takes 604801 s at speed 1, expected at most 604800 s"));
  scenario.speed = 2;
  EXPECT_TRUE(CheckFits(longer, scenario).ok());
  scenario.speed = 0.5;
  EXPECT_FALSE(CheckFits(week, scenario).ok());
}

}  // namespace
}  // namespace baton::simulator
