// Parses the command line of `baton` into the options of its commands.
#ifndef BATON_CLI_COMMANDS_H_
#define BATON_CLI_COMMANDS_H_

#include <string>

#include "cli/admin.h"
#include "cli/bench/bench.h"
#include "cli/bench/agent.h"
#include "cli/bench/judge.h"
#include "cli/chat.h"
#include "cli/explain.h"
#include "cli/generate.h"
#include "cli/health.h"
#include "cli/keys.h"
#include "cli/plan.h"
#include "cli/prefix.h"
#include "cli/pull.h"
#include "cli/score.h"
#include "cli/top.h"
#include "cli/up.h"

namespace baton::cli {

struct Commands {
  // "up", "generate", "chat", "explain", "bench", "keys", "plan", "pull", "score", "top",
  // "health", "prefix", "completion", or one of the commands of admin.h.
  std::string chosen;
  bool is_admin = false;  // one of the latter
  UpOptions up;
  GenerateOptions generate;
  ChatOptions chat;
  std::string benchmark;  // of "bench": "serve", "judge" or "agent"
  BenchOptions bench;
  JudgeOptions judge;
  AgentOptions agent;
  ExplainOptions explain;
  AdminOptions admin;
  TopOptions top;
  KeysOptions keys;
  PlanOptions plan;
  PullOptions pull;
  ScoreOptions score;
  HealthOptions health;
  std::string prefix_command;  // "warm", "list", "drop", "lint"
  PrefixOptions prefix;
  std::string completion;  // the script
};

// The options, or exit_now with the exit code: 0 after --help and --version, else that of an error
// that has been printed.
struct ParsedCommands {
  Commands commands;
  bool exit_now = false;
  int exit_code = 0;
};
ParsedCommands ParseCommands(int argc, const char* const* argv);

}  // namespace baton::cli

#endif  // BATON_CLI_COMMANDS_H_
