// The figures of a `baton bench agent` run.
#ifndef BATON_CLI_BENCH_AGENT_REPORT_H_
#define BATON_CLI_BENCH_AGENT_REPORT_H_

#include <map>
#include <string>
#include <vector>

#include "cli/bench/agent.h"
#include "cli/bench/figures.h"
#include "cli/load_generator.h"

namespace baton::cli {

// A turn that was sent.
struct AgentTurn {
  int turn = 0;  // of its conversation, from 0
  // The tokens at the beginning of its prompt that a worker has seen: those of the conversation's
  // last prompt and answer; in a first turn, those that all conversations share, once a first turn
  // has ended.
  int known_tokens = 0;
  Outcome outcome;
};

// All conversations, once.
struct AgentPass {
  std::string retention;  // one of kAgentRetentions
  double duration_s = 0;
  int turns_skipped = 0;  // after a failed one of the same conversation
  std::vector<AgentTurn> turns;
};

struct AgentResult {
  std::string date, model;
  int conversations = 0;
  int shared_tokens = 0;
  int turns_left_out = 0;  // Conversations::turns_left_out
  std::vector<AgentPass> passes;
};

// What some turns came to. Times and tokens are those of successful requests.
struct AgentFigures {
  Tally tally;
  std::vector<double> ttft_ms;
  // Known tokens that were not found in a cache. Even with all blocks cached these are some: the
  // last ones of a prompt that do not fill a block, and the last of an answer, which no step has
  // read.
  int64_t recomputed_tokens = 0;
};
// The figures of all turns, and those of each turn by its number.
AgentFigures CollectAgent(const AgentPass& pass);
std::map<int, AgentFigures> CollectTurns(const AgentPass& pass);

std::string FormatAgent(const AgentResult& result, const AgentOptions& options);
std::string AgentJson(const AgentResult& result, const AgentOptions& options);
// An SVG: time to first token and hit rate by turn, the distribution of the former.
std::string AgentPlot(const AgentResult& result, const AgentOptions& options);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_AGENT_REPORT_H_
