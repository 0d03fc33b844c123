// `baton`: up, generate, chat, explain, bench, keys, plan, prefix, pull, score, top, health, completion,
// and the commands for operators. docs/cli.md has the exit codes.
#include <google/protobuf/stubs/logging.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <streambuf>

#include "cli/commands.h"
#include "common/base/exit_code.h"
#include "common/base/shutdown_signal.h"

namespace {

int Run(int argc, char** argv) {
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

// Passes on what is written and keeps why that first failed, which streams do not say.
class WatchedOutput final : public std::streambuf {
 public:
  explicit WatchedOutput(std::streambuf* to) : to_(*to) {}
  int error() const { return error_; }

 protected:
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    return Note(to_.sputc(traits_type::to_char_type(c)), traits_type::eof());
  }
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    const std::streamsize written = to_.sputn(text, size);
    if (written < size) Note(-1, -1);
    return written;
  }
  int sync() override { return Note(to_.pubsync(), -1); }

 private:
  int Note(int result, int failure) {
    if (result == failure && error_ == 0) error_ = errno;
    return result;
  }

  std::streambuf& to_;
  int error_ = 0;
};

// A script takes code 0 for the whole output, which may not have fitted on a disk.
int AfterOutput(const WatchedOutput& output, int exit_code) {
  std::cout.flush();
  if (std::cout.good()) return exit_code;
  std::cerr << "baton: standard output: write failed: " << std::strerror(output.error())
            << std::endl;
  return exit_code == baton::kExitOk ? baton::kExitFailure : exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  // Protobuf logs text that is not UTF-8, for which the router's error has the field.
  google::protobuf::SetLogHandler(nullptr);
  std::streambuf* const standard = std::cout.rdbuf();
  WatchedOutput output(standard);
  std::cout.rdbuf(&output);
  const int exit_code = AfterOutput(output, Run(argc, argv));
  std::cout.rdbuf(standard);  // which outlives `output`
  return exit_code;
}
