#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmarks/router_sim/cell.h"
#include "benchmarks/router_sim/peer_formulas.h"
#include "benchmarks/router_sim/sweep_report.h"
#include "simulator/baton_router.h"
#include "simulator/load_generator.h"

namespace baton::simulator::sweeps {
namespace {

using ::testing::HasSubstr;

Trace SmallLoad(uint64_t seed = 1) {
  LoadShape shape;
  shape.requests = 400;
  shape.seed = seed;
  return AgentLoad(shape);
}

std::vector<NamedPolicy> AllPolicies() {
  std::vector<NamedPolicy> policies = {
      {"Baton", MakeBatonRouter([](uint64_t) { return SimPolicy(/*seed=*/0); })}};
  for (const PeerKind& kind : PeerKinds()) {
    policies.push_back({kind.name, MakePeerRouter(kind)});
  }
  return policies;
}

// Two equal prompts on one idle worker.
Trace TwoEqualPrompts(int64_t gap_us) {
  Trace trace;
  trace.name = "two";
  trace.block_count = 4;
  trace.requests = {{0, 2100, {0, 1, 2, 3}}, {gap_us, 2100, {0, 1, 2, 3}}};
  return trace;
}

TEST(SweepTest, EveryPolicyAnswersAllAndNoneHitsMoreThanTheCeiling) {
  const Trace agents = SmallLoad(), shared = SharedPrefixLoad(LoadShape{400, 0.25, 1});
  std::vector<Cell> cells(4);
  for (Cell& cell : cells) {
    cell.trace = &agents;
    cell.scenario.workers = 4;
    cell.scenario.cache_blocks = 600;
  }
  cells[1].trace = &shared;
  cells[2].scenario.routers = 3;
  cells[3].scenario.outages = {{0, 20, 40}};
  cells[3].note = "kill";
  const auto policies = AllPolicies();
  const auto results = RunCells(cells, policies, 2), again = RunCells(cells, policies, 1);
  for (size_t c = 0; c < cells.size(); ++c) {
    for (size_t p = 0; p < policies.size(); ++p) {
      const CellResult& r = results[c][p];
      const std::string where = CellName(cells[c]) + ": " + policies[p].name;
      EXPECT_EQ(r.unanswered, 0) << where;
      EXPECT_LE(r.hit_rate, InfiniteCacheHitRate(*cells[c].trace) + 1e-9) << where;
      EXPECT_GT(r.mean_ttft_s, 0) << where;
      EXPECT_GE(r.p99_ttft_s, r.p50_ttft_s) << where;
    }
    // Equal seeds, equal tables, on however many threads.
    EXPECT_EQ(CellTable(cells[c], policies, results[c], /*timings=*/false),
              CellTable(cells[c], policies, again[c], /*timings=*/false));
  }
  EXPECT_EQ(SummaryTable(cells, policies, results, kMeanTtft),
            SummaryTable(cells, policies, again, kMeanTtft));
  EXPECT_THAT(SpeedPlot(cells, policies, results), HasSubstr("<svg"));
}

TEST(SweepTest, RatiosAreToTheBestThatAnsweredAll) {
  const Trace trace = TwoEqualPrompts(0);
  std::vector<Cell> cells(2);
  for (Cell& cell : cells) cell.trace = &trace;
  std::vector<std::vector<CellResult>> results(2, std::vector<CellResult>(3));
  results[0][0].mean_ttft_s = 2, results[0][1].mean_ttft_s = 2.08, results[0][2].mean_ttft_s = 6;
  results[1][0].mean_ttft_s = 3, results[1][1].mean_ttft_s = 2, results[1][2].mean_ttft_s = 1;
  results[1][2].unanswered = 1;
  const auto summaries = Summarize(cells, 3, results, kMeanTtft);
  EXPECT_DOUBLE_EQ(summaries[0].worst_ratio, 1.5);
  EXPECT_EQ(summaries[0].near_best, 1);
  EXPECT_DOUBLE_EQ(summaries[1].worst_ratio, 1.04);
  EXPECT_EQ(summaries[1].near_best, 2);
  EXPECT_DOUBLE_EQ(summaries[2].worst_ratio, 3);
  EXPECT_EQ(summaries[2].near_best, 0);
}

}  // namespace
}  // namespace baton::simulator::sweeps
