// `baton bench agent`: long conversations behind one long prefix, such as the descriptions of an
// agent's tools. Each turn sends all before it, the last answer and new tokens: the share of prompt
// tokens found in prefix caches, the time to first token by turn, and the tokens computed again.
#ifndef BATON_CLI_BENCH_AGENT_H_
#define BATON_CLI_BENCH_AGENT_H_

#include <ostream>
#include <string>
#include <vector>

#include "cli/bench/conversations.h"
#include "cli/bench/output.h"
#include "cli/bench/target.h"

namespace baton::cli {

// What prefix caches are asked to retain: nothing, the tokens that all conversations share, or each
// prompt.
inline const std::vector<std::string> kAgentRetentions = {"off", "tools", "prompts"};

struct AgentOptions {
  TargetOptions target;  // the router
  ConversationOptions conversations;
  int max_concurrency = 64;  // conversations that run at once; the next one begins later
  int vocab_size = 0;        // token ids are below it; 0: of the router's model
  std::vector<std::string> retentions = {"off"};  // all conversations run once for each
  int retention_priority = 50;
  int64_t retention_ttl_ms = 600'000;
  std::vector<double> percentiles = {50, 90, 99};
  OutputOptions output;
};

// Returns the exit code (common/base/exit_code.h): kExitFailure if every request failed.
int RunAgent(const AgentOptions& options, std::ostream& out, std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_AGENT_H_
