// `baton`: up, generate, chat, explain, bench, keys, plan, prefix, pull, score, top, health, completion,
// and the commands for operators. docs/cli.md has the exit codes.
#include <iostream>

#include "cli/commands.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"

int main(int argc, char** argv) {
  const baton::cli::ParsedCommands parsed = baton::cli::ParseCommands(argc, argv);
  if (parsed.exit_now) return parsed.exit_code;
  const baton::cli::Commands& commands = parsed.commands;
  if (commands.chosen == "completion") {
    std::cout << commands.completion << std::flush;
    return baton::kExitOk;
  }
  // These have nothing to clean up, so a signal may end the process; `pull` resumes later.
  if (commands.chosen == "pull") return baton::cli::RunPull(commands.pull, std::cout, std::cerr);
  if (commands.chosen == "explain") {
    return baton::cli::RunExplain(commands.explain, std::cout, std::cerr);
  }
  if (commands.is_admin) {
    return baton::cli::RunAdmin(commands.chosen, commands.admin, std::cout, std::cerr);
  }
  if (commands.chosen == "prefix") {
    return baton::cli::RunPrefix(commands.prefix_command, commands.prefix, std::cout, std::cerr);
  }
  if (commands.chosen == "health") {
    return baton::cli::RunHealth(commands.health, std::cout, std::cerr);
  }
  if (commands.chosen == "keys") return baton::cli::RunNewKey(commands.keys, std::cout, std::cerr);
  if (commands.chosen == "plan") return baton::cli::RunPlan(commands.plan, std::cout, std::cerr);
  const baton::ShutdownSignal signals(baton::BrokenPipe::kDefault);  // before any thread
  if (commands.chosen == "up") return baton::cli::RunUp(commands.up, std::cout, std::cerr);
  if (commands.chosen == "generate") {
    return baton::cli::RunGenerate(commands.generate, std::cout, std::cerr);
  }
  if (commands.chosen == "score") {
    return baton::cli::RunScore(commands.score, std::cin, std::cout, std::cerr);
  }
  if (commands.chosen == "chat") {
    return baton::cli::RunChat(commands.chat, std::cout, std::cerr);
  }
  if (commands.chosen == "top") return baton::cli::RunTop(commands.top, std::cout, std::cerr);
  if (commands.benchmark == "judge") {
    return baton::cli::RunJudge(commands.judge, std::cout, std::cerr);
  }
  if (commands.benchmark == "agent") {
    return baton::cli::RunAgent(commands.agent, std::cout, std::cerr);
  }
  return baton::cli::RunBench(commands.bench, std::cout, std::cerr);
}
