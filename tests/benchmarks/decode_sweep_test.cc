#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "benchmarks/router_sim/decode_cells.h"
#include "benchmarks/router_sim/peer_formulas.h"
#include "benchmarks/router_sim/sweep_report.h"
#include "simulator/baton_router.h"
#include "simulator/load_generator.h"

namespace baton::simulator::sweeps {
namespace {

using ::testing::HasSubstr;

std::vector<NamedPolicy> DecodePolicies() {
  std::vector<NamedPolicy> policies = {
      {"Baton", MakeBatonRouter([](uint64_t) { return SimPolicy(/*seed=*/0); })}};
  for (const PeerKind& kind : DecodePeerKinds()) {
    policies.push_back({kind.name, MakePeerRouter(kind)});
  }
  return policies;
}

Trace Requests(std::vector<SimRequest> requests) {
  Trace trace;
  trace.name = "few";
  trace.requests = std::move(requests);
  return trace;
}

TEST(DecodeSweepTest, EveryPolicyAnswersAllAndThreadsChangeNothing) {
  LoadShape shape;
  shape.requests = 300;
  shape.mean_gap_s = 0.05;
  const Trace poisson = PoissonLoad(shape);
  shape.mean_gap_s = 0.4;  // so long that conversations come back
  const Trace sessions = SessionLoad(shape);
  std::vector<Cell> cells(5);
  for (Cell& cell : cells) {
    cell.trace = &poisson;
    cell.scenario.workers = 0;
    cell.scenario.routers = 2;
    cell.scenario.decode.workers = 4;
    cell.scenario.decode.shape = GpuShape();
  }
  cells[1].trace = &sessions;
  cells[2].scenario.decode.outages = {{1, 3, 6}, {2, 0, 5}};
  cells[2].note = "kill and join";
  cells[3].scenario.decode.shape.kv_blocks = 400;
  cells[3].note = "tiny";
  cells[4].trace = &sessions;
  cells[4].scenario.workers = 2;
  cells[4].scenario.cost = cells[4].scenario.decode.ample_prefill;
  const auto policies = DecodePolicies();
  const auto results = RunCells(cells, policies, 2), again = RunCells(cells, policies, 1);
  for (size_t c = 0; c < cells.size(); ++c) {
    for (size_t p = 0; p < policies.size(); ++p) {
      const std::string where = CellName(cells[c]) + ": " + policies[p].name;
      EXPECT_EQ(results[c][p].unanswered, 0) << where;
      EXPECT_GT(results[c][p].decode.mean_itl_s, 0.02) << where;
      EXPECT_GE(results[c][p].decode.p99_itl_s, results[c][p].decode.mean_itl_s) << where;
    }
    EXPECT_EQ(CellTable(cells[c], policies, results[c], /*timings=*/false),
              CellTable(cells[c], policies, again[c], /*timings=*/false));
  }
  EXPECT_THAT(CellTable(cells[0], policies, results[0], false), HasSubstr("mean ITL ms"));
  EXPECT_EQ(CellName(cells[4]), "sessions 2p4d R2");
  // Who knows where conversations are moves less.
  const auto first_gap = [&](const char* name) {
    for (size_t p = 0; p < policies.size(); ++p) {
      if (policies[p].name == name) return results[1][p].decode.mean_first_gap_s;
    }
    return 0.0;
  };
  EXPECT_LT(first_gap("llm-d queue + KV + prefix"), 0.9 * first_gap("llm-d queue + KV"));
}

TEST(DecodeSweepTest, LevelsAreSharesOfWhatTheFleetCanDo) {
  DecodeSweepOptions options;
  options.quick = true;
  const DecodeSweep sweep = MakeDecodeSweep(options);
  ASSERT_FALSE(sweep.cells.empty());
  std::set<std::string> names;
  for (const Cell& cell : sweep.cells) {
    EXPECT_TRUE(names.insert(CellName(cell)).second) << CellName(cell);
    const std::vector<SimRequest>& requests = cell.trace->requests;
    double tokens = 0;
    for (const SimRequest& r : requests) tokens += r.output_tokens;
    const DecodeTier& tier = cell.scenario.decode;
    const double demand = tokens * 1e6 / static_cast<double>(requests.back().at_us);
    const double most = tier.workers * TokensPerSecond(tier.shape, *cell.trace);
    EXPECT_GT(demand / most, 0.45) << CellName(cell);
    EXPECT_LT(demand / most, 1.15) << CellName(cell);
  }
  // 64 sequences of 1,000 tokens of context: 20 ms + 64 · 0.05 ms + 64,000 · 0.25 µs.
  const Trace trace = Requests({{0, 950, {}, 100, {}}});
  EXPECT_NEAR(TokensPerSecond(GpuShape(), trace), 64 / 39.2e-3, 0.1);
}

}  // namespace
}  // namespace baton::simulator::sweeps
