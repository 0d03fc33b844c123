// The figures of a `baton bench` run, with the lines and JSON keys of vLLM's serving benchmark,
// which scripts around such benchmarks read.
#ifndef BATON_CLI_BENCH_REPORT_H_
#define BATON_CLI_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "cli/load_generator.h"

namespace baton::cli {

struct BenchResult {
  std::string model;
  int concurrency = 0;  // the limit of the run
  double duration_s = 0;
  std::vector<Outcome> outcomes;
};

struct Summary {
  double mean = 0;
  double median = 0;
  double p90 = 0;
  double p99 = 0;
};

// Computes percentiles by linear interpolation between the two nearest values; zeros if empty.
Summary Summarize(std::vector<double> values);

// Returns the highest number of requests that ran at once.
int PeakConcurrency(const std::vector<Outcome>& outcomes);

// As text for people, and as JSON. Latencies are those of successful requests only; failures are
// counted by reason.
std::string FormatReport(const BenchResult& result);
std::string ReportJson(const BenchResult& result);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_REPORT_H_
