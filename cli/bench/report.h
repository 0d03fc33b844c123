// The figures of a `baton bench serve` run, with the lines and JSON keys of `vllm bench serve`,
// which scripts around such benchmarks read.
#ifndef BATON_CLI_BENCH_REPORT_H_
#define BATON_CLI_BENCH_REPORT_H_

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/figures.h"
#include "cli/load_generator.h"

namespace baton::cli {

struct BenchResult {
  std::string date;  // "20240131-235959"
  std::string backend;
  std::string label;  // empty: none
  std::string model;
  std::vector<std::pair<std::string, std::string>> metadata;  // keys of their own in the JSON
  int num_prompts = 0;
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;
  std::optional<int> max_concurrency;
  double start_s = 0;  // as NowSeconds()
  double duration_s = 0;
  std::vector<Outcome> outcomes;  // in the order of the prompts
};

// What can be summarised, with the names of --percentile-metrics.
inline const std::vector<std::string> kBenchMetrics = {
    "ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue"};

struct ReportOptions {
  std::vector<std::string> metrics = {"ttft", "tpot", "itl", "e2el"};
  std::vector<double> percentiles = {99};  // 0 to 100
  std::map<std::string, double>
      goodput_ms;         // the most of "ttft", "tpot", "e2el"; empty: no goodput
  bool detailed = false;  // the JSON also has the values of each request
};

// Returns the highest number of requests that ran at once.
int PeakConcurrency(const std::vector<Outcome>& outcomes);

// Tokens of successful requests that arrived in each second after `start_s`.
std::vector<double> TokensPerSecond(const std::vector<Outcome>& outcomes, double start_s);

// As text for people, and as JSON. Latencies are those of successful requests only; failures are
// counted by reason.
std::string FormatReport(const BenchResult& result, const ReportOptions& options);
std::string ReportJson(const BenchResult& result, const ReportOptions& options);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_REPORT_H_
