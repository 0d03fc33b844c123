// The figures of a bench run, in the form that scripts around serving benchmarks read.
#ifndef BATON_CLI_BENCH_REPORT_H_
#define BATON_CLI_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "cli/load_generator.h"

namespace baton::cli {

struct BenchResult {
  std::string model;
  int concurrency = 0;
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

// Latencies are those of successful requests only; failures are counted by reason.
std::string FormatReport(const BenchResult& result);
std::string ReportJson(const BenchResult& result);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_REPORT_H_
