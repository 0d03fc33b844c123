// A benchmark run as a picture.
#ifndef BATON_CLI_BENCH_PLOT_H_
#define BATON_CLI_BENCH_PLOT_H_

#include <string>
#include <vector>

#include "cli/bench/report.h"
#include "cli/svg_plot.h"

namespace baton::cli {

// Returns an SVG: tokens and running requests over time, and the distributions of time to first
// token and of inter-token latency (the share of values up to each time).
std::string BenchPlot(const BenchResult& result);

// The share of the values, in percent, that are at most x.
Series Distribution(const std::string& name, std::vector<double> values);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_PLOT_H_
