// A benchmark run as a picture.
#ifndef BATON_CLI_BENCH_PLOT_H_
#define BATON_CLI_BENCH_PLOT_H_

#include <string>

#include "cli/bench_report.h"

namespace baton::cli {

// Returns an SVG: tokens and running requests over time, and the distributions of time to first
// token and of inter-token latency (the share of values up to each time).
std::string BenchPlot(const BenchResult& result);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_PLOT_H_
