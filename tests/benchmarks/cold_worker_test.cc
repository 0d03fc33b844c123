// What a router must make of workers of which it knows little.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "benchmarks/router_sim/decode_cells.h"
#include "simulator/baton_router.h"
#include "simulator/simulation.h"

namespace baton::simulator::sweeps {
namespace {

// Each worker's first steps take long: memory is touched for the first time, kernels are chosen. If
// its reports say nothing but that, equal machines are to be seen as equal all the same.
TEST(ColdWorkerTest, ABurstIsSpreadOverEqualWorkersThoughOneHasOnlySlowFirstStepsBehindIt) {
  for (int routers : {1, 4}) {
    SCOPED_TRACE(::testing::Message() << routers << " routers");
    Trace trace;
    trace.name = "burst";
    for (int i = 0; i < 24; ++i) trace.requests.push_back({0, 200, {}, 600, {}});
    Scenario scenario;
    scenario.workers = 0;
    scenario.routers = routers;
    scenario.decode.workers = 2;
    scenario.decode.shape = GpuShape();
    // The other one has run for a while.
    scenario.decode.past = {{0, {1, 1, 30, 770'000}}, {1, {50, 4, 1000, 20'450}}};
    scenario.decode.snapshot_s = 2;
    const CellResult result =
        Simulate(trace, scenario, MakeBatonRouter([](uint64_t) { return SimPolicy(/*seed=*/0); }));
    EXPECT_EQ(result.unanswered, 0);
    const std::vector<int>& sequences = result.decode.snapshot;
    ASSERT_EQ(sequences.size(), 2u);
    ASSERT_EQ(sequences[0] + sequences[1], 24);
    EXPECT_LE(std::max(sequences[0], sequences[1]) / 12.0, 1.25)
        << sequences[0] << " and " << sequences[1];
  }
}

}  // namespace
}  // namespace baton::simulator::sweeps
