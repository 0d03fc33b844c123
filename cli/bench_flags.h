// The flags of `baton bench`: those of `vllm bench serve`, with its names and defaults.
#ifndef BATON_CLI_BENCH_FLAGS_H_
#define BATON_CLI_BENCH_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "cli/bench.h"

namespace CLI {
class App;
}

namespace baton::cli {

// Values that FinishBench() converts to fields of BenchOptions.
struct BenchFlags {
  std::string what;  // "serve"
  std::optional<int> input_len, output_len;
  bool ignore_eos = false;
  std::string base_url, host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> headers, metadata, goodput;
  std::string percentile_metrics = "ttft,tpot,itl,e2el";
  std::string metric_percentiles = "99";
  bool disable_tqdm = false, disable_shuffle = false, no_oversample = false;
};

void AddBench(CLI::App* app, BenchOptions* bench, BenchFlags* flags);
// Call after parsing. Throws CLI::ValidationError if flags contradict each other.
void FinishBench(const CLI::App& app, const BenchFlags& flags, BenchOptions* bench);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_FLAGS_H_
