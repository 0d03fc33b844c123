// The flags of `baton bench judge` and `baton bench agent`.
#ifndef BATON_CLI_BENCH_WORKLOAD_FLAGS_H_
#define BATON_CLI_BENCH_WORKLOAD_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "cli/bench/agent.h"
#include "cli/bench/flags.h"
#include "cli/bench/judge.h"

namespace CLI {
class App;
}

namespace baton::cli {

// Values that FinishJudge() and FinishAgent() convert to fields of the options.
struct WorkloadFlags {
  std::optional<uint64_t> seed;
  std::string metric_percentiles = "50,90,99";
  OutputFlags output;
};
struct JudgeFlags {
  WorkloadFlags workload;
  std::string verdicts;
};
struct AgentFlags {
  WorkloadFlags workload;
  std::string retention = "off";
  double retention_ttl_s = 600;
};

void AddJudge(CLI::App* app, JudgeOptions* judge, JudgeFlags* flags);
void AddAgent(CLI::App* app, AgentOptions* agent, AgentFlags* flags);
// Call after parsing. Throw CLI::ValidationError if flags are wrong together.
void FinishJudge(const JudgeFlags& flags, JudgeOptions* judge);
void FinishAgent(const CLI::App& app, const AgentFlags& flags, AgentOptions* agent);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_WORKLOAD_FLAGS_H_
