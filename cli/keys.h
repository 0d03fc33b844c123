// `baton keys new`: makes an API key.
#ifndef BATON_CLI_KEYS_H_
#define BATON_CLI_KEYS_H_

#include <ostream>
#include <string>

namespace baton::cli {

struct KeysOptions {
  std::string action;  // "new"
  std::string tenant;
  bool admin = false;
  bool json = false;
};

// Prints the key, which is nowhere else, and the line for the file of --api-keys, which has only
// its hash. Returns the exit code (common/base/exit_code.h).
int RunNewKey(const KeysOptions& options, std::ostream& out, std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_KEYS_H_
