// `baton bench serve`: sends prompts to a running server and reports throughput and latencies, with
// the flags and the report of `vllm bench serve`.
#ifndef BATON_CLI_BENCH_BENCH_H_
#define BATON_CLI_BENCH_BENCH_H_

#include <limits>
#include <optional>
#include <ostream>

#include "cli/bench/dataset.h"
#include "cli/bench/output.h"
#include "cli/bench/report.h"
#include "cli/bench/target.h"

namespace baton::cli {

struct BenchOptions {
  TargetOptions target;
  DatasetOptions dataset;
  // Requests a second; infinity sends all at once. Not used by the dataset "trace" with
  // `self_timed`, which has times.
  double request_rate = std::numeric_limits<double>::infinity();
  double burstiness = 1;  // see ArrivalTimes()
  bool self_timed = true;
  std::optional<int> max_concurrency;  // a request that arrives while so many run is sent later
  int num_warmups = 0;  // requests with the first prompt, sent before the measured ones
  int vocab_size = 0;   // for random prompts; 0: of the router's model
  ReportOptions report;
  OutputOptions output;
};

// Returns the exit code (common/base/exit_code.h): kExitFailure if every request failed.
int RunBench(const BenchOptions& options, std::ostream& out, std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_BENCH_H_
