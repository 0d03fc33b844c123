// The command line of `baton`: flags to the options of each command. Apart from main.cc so that
// tests can parse.
#ifndef BATON_CLI_COMMANDS_H_
#define BATON_CLI_COMMANDS_H_

#include <functional>
#include <memory>
#include <string>

#include "cli/bench.h"
#include "cli/explain.h"
#include "cli/generate.h"
#include "cli/plan.h"
#include "cli/up.h"

namespace CLI {
class App;
}

namespace baton::cli {

struct Commands {
  std::string chosen;  // "up", "generate", "explain", "bench" or "plan"
  UpOptions up;
  GenerateOptions generate;
  BenchOptions bench;
  ExplainOptions explain;
  PlanOptions plan;
};

// Parsed, or the exit code with which to leave: 0 after --help, else after telling what is wrong.
struct ParsedCommands {
  Commands commands;
  bool exit_now = false;
  int exit_code = 0;
};
ParsedCommands ParseCommands(int argc, const char* const* argv);

}  // namespace baton::cli

#endif  // BATON_CLI_COMMANDS_H_
