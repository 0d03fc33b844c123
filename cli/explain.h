// `baton explain`: where a router would send a prompt, or where it sent the last ones, and why.
#ifndef BATON_CLI_EXPLAIN_H_
#define BATON_CLI_EXPLAIN_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "baton/v1/admin.pb.h"

namespace baton::cli {

struct ExplainOptions {
  std::string address = "127.0.0.1:50051";
  std::string text;        // of the prompt to be explained; empty: tell the last decisions
  std::string model;       // of the prompt
  std::string cache_salt;  // of the prompt
  std::string request_id;  // whose decisions; empty: all
  int last = 1;            // how many decisions
  bool json = false;       // one object a line instead of tables
  int64_t timeout_ms = 10'000;
};

// The exit code: 0, or 1 with the error and its reason on `err`.
int RunExplain(const ExplainOptions& options, std::ostream& out, std::ostream& err);

// For people: what was chosen, then a row for each candidate, the chosen ones with a star.
std::string DecisionTable(const v1::Decision& decision);

}  // namespace baton::cli

#endif  // BATON_CLI_EXPLAIN_H_
