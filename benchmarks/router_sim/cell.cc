#include "benchmarks/router_sim/cell.h"

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace baton::simulator::sweeps {

std::string CellName(const Cell& cell) {
  const Scenario& s = cell.scenario;
  std::string name =
      s.decode.workers > 0
          ? absl::StrFormat("%s %s%dd R%d", cell.trace->name,
                            s.workers > 0 ? absl::StrCat(s.workers, "p") : "", s.decode.workers,
                            s.routers)
          : absl::StrFormat("%s %dw R%d x%g", cell.trace->name, s.workers, s.routers, s.speed);
  if (!cell.note.empty()) name += ", " + cell.note;
  return name;
}

std::vector<std::vector<CellResult>> RunCells(const std::vector<Cell>& cells,
                                              const std::vector<NamedPolicy>& policies,
                                              int threads) {
  std::vector<std::vector<CellResult>> results(cells.size(),
                                               std::vector<CellResult>(policies.size()));
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < cells.size() * policies.size(); i = next++) {
      const Cell& cell = cells[i / policies.size()];
      const NamedPolicy& policy = policies[i % policies.size()];
      results[i / policies.size()][i % policies.size()] =
          Simulate(*cell.trace, cell.scenario, policy.make);
    }
  };
  std::vector<std::thread> pool;
  for (int i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
  return results;
}

}  // namespace baton::simulator::sweeps
