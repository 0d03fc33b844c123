// The cells that show what links of different rates do: both tiers, loads with long prompts.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_LINK_CELLS_H_
#define BATON_BENCHMARKS_ROUTER_SIM_LINK_CELLS_H_

#include <deque>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/router_sim/cell.h"

namespace baton::simulator::sweeps {

struct LinkSweepOptions {
  std::vector<std::string> rates;  // as ParseLinkRates takes them: cells for each
  uint64_t seed = 1;
  std::vector<const Trace*> recorded;  // whose beginnings are replayed, too
};
struct LinkSweep {
  std::deque<Trace> traces;  // of the cells
  std::vector<Cell> cells;   // of eight prefill and eight decode workers, and four routers
};
// INVALID_ARGUMENT if rates cannot be read.
absl::StatusOr<LinkSweep> MakeLinkSweep(const LinkSweepOptions& options);

// A row a cell and policy: the median and the 99th percentile of the times to the first and to the
// second token, and the mean time of answers. In Markdown.
std::string LinkTable(const std::vector<Cell>& cells, const std::vector<NamedPolicy>& policies,
                      const std::vector<std::vector<CellResult>>& results);

}  // namespace baton::simulator::sweeps

#endif  // BATON_BENCHMARKS_ROUTER_SIM_LINK_CELLS_H_
