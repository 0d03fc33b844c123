// Cells of a sweep: what is run, under which name, and what came out.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_CELL_H_
#define BATON_BENCHMARKS_ROUTER_SIM_CELL_H_

#include <string>
#include <vector>

#include "simulator/simulation.h"

namespace baton::simulator::sweeps {

struct NamedPolicy {
  std::string name;
  MakeRouter make;
};

struct Cell {
  const Trace* trace = nullptr;
  Scenario scenario;
  std::string note;  // what is unusual: "kill + join", ...
};

// "conversation 8w R4 x1.2"; with decode workers, whose load is part of the trace's name: "poisson
// 0.85 8d R4", or, behind six prefill workers, "poisson 0.85 6p8d R4".
std::string CellName(const Cell& cell);

// results[cell][policy], each computed by one of `threads` threads.
std::vector<std::vector<CellResult>> RunCells(const std::vector<Cell>& cells,
                                              const std::vector<NamedPolicy>& policies,
                                              int threads);

}  // namespace baton::simulator::sweeps

#endif  // BATON_BENCHMARKS_ROUTER_SIM_CELL_H_
