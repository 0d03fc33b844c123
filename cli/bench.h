// `baton bench`: sends random prompts, which may share a prefix, and reports latencies.
#ifndef BATON_CLI_BENCH_H_
#define BATON_CLI_BENCH_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "cli/bench_report.h"
#include "cli/router_flags.h"

namespace baton::cli {

struct BenchOptions {
  std::string address = "127.0.0.1:50051";
  RouterAccess access;
  int num_prompts = 100;
  int concurrency = 8;
  int shared_prefix_tokens = 0;  // leading tokens of prompt_tokens that all prompts share
  int prompt_tokens = 128;
  int max_tokens = 32;
  uint64_t seed = 0;
  bool ignore_eos = true;
  std::string save_result;       // path of a JSON file; empty: none
  bool json = false;             // print that JSON instead of a table
  int64_t timeout_ms = 600'000;  // of each request
};

// Returns the token ids of all prompts. They depend only on the arguments, and are identical on
// every machine.
std::vector<std::vector<int32_t>> BenchPrompts(const BenchOptions& options, int vocab_size);

// Returns the exit code (common/base/exit_code.h): kExitFailure if every request failed.
int RunBench(const BenchOptions& options, std::ostream& out, std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_H_
