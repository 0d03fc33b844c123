// `baton score`: scores the lines of a file behind one prefix and prints one JSON object per line.
#ifndef BATON_CLI_SCORE_H_
#define BATON_CLI_SCORE_H_

#include <cstdint>
#include <istream>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/router_flags.h"
#include "client/cpp/client.h"

namespace baton::cli {

struct ScoreOptions {
  std::string address = "127.0.0.1:50051";
  RouterAccess access;
  client::ScoreRequest request;  // without the prefix
  std::string prefix_file;       // empty: no prefix
  std::string items_file;        // "-": the standard input
  bool in_order = true;
  bool progress = false;  // a bar on `err`
  int64_t timeout_ms = 600'000;
};

// Returns the exit code (common/base/exit_code.h): 0 if every item was scored. Ctrl-C cancels the
// call.
int RunScore(const ScoreOptions& options, std::istream& in, std::ostream& out, std::ostream& err);

// One line of the items: a JSON string, or an object with "text" and perhaps "id", any JSON value
// that is repeated in the output. INVALID_ARGUMENT otherwise.
struct ItemLine {
  std::string text;
  std::string id;  // as JSON; empty: none
};
absl::StatusOr<ItemLine> ParseItemLine(const std::string& line);

// One line of the output.
std::string ToJson(const client::ItemScore& item, const std::string& id,
                   const std::vector<std::string>& labels);

}  // namespace baton::cli

#endif  // BATON_CLI_SCORE_H_
