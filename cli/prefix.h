// `baton prefix`: warm, list and drop keep prefixes in the caches of prefill workers; lint is in
// prefix_lint.h.
#ifndef BATON_CLI_PREFIX_H_
#define BATON_CLI_PREFIX_H_

#include <cstdint>
#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "cli/router_flags.h"

namespace CLI {
class App;
}

namespace baton::cli {

struct PrefixOptions {
  std::string address = "127.0.0.1:50051";
  RouterAccess access;
  int64_t timeout_ms = 120'000;
  bool json = false;  // one JSON object instead of text

  // warm
  std::string text;
  std::string file;  // with the text; empty: `text` is it
  std::string model;
  std::string cache_salt;
  std::string tenant;
  int replicas = 0;  // 0: all prefill workers
  int priority = 50;
  int64_t ttl_ms = 3'600'000;
  std::optional<int32_t> until_token;

  std::string id;                  // drop
  std::vector<std::string> files;  // lint
};

// By the name of the subcommand: CLI11 applies the environment to all of them.
using PrefixCommands = std::map<std::string, PrefixOptions>;

// Adds warm, list, drop and lint to `app`, which is `baton prefix`.
void AddPrefix(CLI::App* app, PrefixCommands* commands);

// `command`: the name of the subcommand. Returns the exit code (common/base/exit_code.h); an error
// and its reason are on `err`.
int RunPrefix(const std::string& command, const PrefixOptions& options, std::ostream& out,
              std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_PREFIX_H_
