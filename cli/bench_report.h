// The figures of a bench run, in the form that scripts around serving benchmarks read.
#ifndef BATON_CLI_BENCH_REPORT_H_
#define BATON_CLI_BENCH_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

namespace baton::cli {

// One request, times in seconds.
struct RequestSample {
  bool ok = false;
  std::string failure;  // its reason, if it failed
  std::string message;
  int prompt_tokens = 0;
  int cached_prompt_tokens = 0;
  int generated_tokens = 0;
  int64_t kv_bytes = 0;
  double start_s = 0;  // since the start of the run
  double end_s = 0;
  double ttft_s = 0;
  double e2e_s = 0;
  std::vector<double> inter_token_s;
};

struct BenchResult {
  std::string model;
  int concurrency = 0;
  double duration_s = 0;
  std::vector<RequestSample> samples;
};

struct Summary {
  double mean = 0;
  double median = 0;
  double p90 = 0;
  double p99 = 0;
};

// Percentiles by linear interpolation between the two nearest; zeros of nothing.
Summary Summarize(std::vector<double> values);

// How many requests ran at once, at most.
int PeakConcurrency(const std::vector<RequestSample>& samples);

// Successful requests only make the latencies; failures are counted by reason.
std::string FormatReport(const BenchResult& result);
std::string ReportJson(const BenchResult& result);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_REPORT_H_
