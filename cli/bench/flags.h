// The flags of `baton bench serve`: those of `vllm bench serve`, with its names and defaults; some
// are also flags of the other benchmarks.
#ifndef BATON_CLI_BENCH_FLAGS_H_
#define BATON_CLI_BENCH_FLAGS_H_

#include <optional>
#include <string>
#include <vector>

#include "cli/bench/bench.h"

namespace CLI {
class App;
}

namespace baton::cli {

// Values that FinishOutput() converts to fields of OutputOptions.
struct OutputFlags {
  std::vector<std::string> metadata;
  bool disable_tqdm = false;
};

// Where the result of a benchmark goes: --label, --metadata, --save-result, --plot, --json, ...
// `plot` is the description of --plot.
void AddOutput(CLI::App* app, const std::string& plot, OutputOptions* output, OutputFlags* flags);
void FinishOutput(const OutputFlags& flags, OutputOptions* output);

// "50,90,99.9" as numbers from 0 to 100. Throws CLI::ValidationError, naming --metric-percentiles.
std::vector<double> ParsePercentiles(const std::string& text);

// Values that FinishServe() converts to fields of BenchOptions.
struct ServeFlags {
  std::optional<int> input_len, output_len;
  bool ignore_eos = false;
  std::string base_url, host = "127.0.0.1";
  int port = 8000;
  std::vector<std::string> headers, goodput;
  std::string percentile_metrics = "ttft,tpot,itl,e2el";
  std::string metric_percentiles = "99";
  bool disable_shuffle = false, no_oversample = false;
  OutputFlags output;
};

void AddServe(CLI::App* app, BenchOptions* bench, ServeFlags* flags);
// Call after parsing. Throws CLI::ValidationError if flags contradict each other.
void FinishServe(const CLI::App& app, const ServeFlags& flags, BenchOptions* bench);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_FLAGS_H_
