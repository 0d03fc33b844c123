// `baton completion`: completion scripts for shells, generated from the commands and flags that
// CLI11 knows, so that they lack none.
#ifndef BATON_CLI_COMPLETION_H_
#define BATON_CLI_COMPLETION_H_

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace baton::cli {

inline const std::vector<std::string> kShells = {"bash", "zsh", "fish"};

// Returns the script for `shell`, one of kShells. It completes subcommands, flags, the values of
// flags that have a fixed set, and paths. `app` has subcommands of one level.
std::string CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace baton::cli

#endif  // BATON_CLI_COMPLETION_H_
