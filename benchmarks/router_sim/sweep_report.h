// What a sweep says: a table a cell, a summary over all cells, and a plot.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_SWEEP_REPORT_H_
#define BATON_BENCHMARKS_ROUTER_SIM_SWEEP_REPORT_H_

#include <string>
#include <vector>

#include "benchmarks/router_sim/cell.h"

namespace baton::simulator::sweeps {

// What policies are compared by: lower is better.
struct Figure {
  const char* name;
  double (*of)(const CellResult& result);
};
extern const Figure kMeanTtft;  // seconds
extern const Figure kMeanItl;   // milliseconds
extern const Figure kP99Itl;    // milliseconds

struct PolicySummary {
  double worst_ratio = 0;  // of its figure to the best policy's, over the cells
  std::string worst_cell;
  double mean_ratio = 0;  // geometric
  int near_best = 0;      // cells within 5 % of the best
};

// One for each policy. A policy that left requests unanswered is not compared in that cell.
std::vector<PolicySummary> Summarize(const std::vector<Cell>& cells, int policies,
                                     const std::vector<std::vector<CellResult>>& results,
                                     const Figure& figure);

// All in Markdown. CellTable says what is measured of the tier that the cell is about (decode
// workers, if there are some). With `timings` also ns a decision, which no two runs have alike.
std::string CellTable(const Cell& cell, const std::vector<NamedPolicy>& policies,
                      const std::vector<CellResult>& results, bool timings);
std::string SummaryTable(const std::vector<Cell>& cells, const std::vector<NamedPolicy>& policies,
                         const std::vector<std::vector<CellResult>>& results, const Figure& figure);
// A row a cell, a column a policy.
std::string FigureTable(const std::vector<Cell>& cells, const std::vector<NamedPolicy>& policies,
                        const std::vector<std::vector<CellResult>>& results, const Figure& figure);

// Mean TTFT, as a multiple of the best policy's, by replay speed: a chart for each load, workers
// and routers that has several speeds.
std::string SpeedPlot(const std::vector<Cell>& cells, const std::vector<NamedPolicy>& policies,
                      const std::vector<std::vector<CellResult>>& results);

}  // namespace baton::simulator::sweeps

#endif  // BATON_BENCHMARKS_ROUTER_SIM_SWEEP_REPORT_H_
