// `baton explain`: which workers a router would choose for a prompt, or has chosen lately, and why.
#ifndef BATON_CLI_EXPLAIN_H_
#define BATON_CLI_EXPLAIN_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "cli/router_flags.h"

namespace baton::v1 {
class CacheMiss;
class Decision;
}  // namespace baton::v1

namespace baton::cli {

struct ExplainOptions {
  std::string address = "127.0.0.1:50051";
  RouterAccess access;
  std::string text;        // a prompt to explain; empty: show past decisions
  std::string model;       // with a prompt: the model of its request
  std::string cache_salt;  // with a prompt: the cache salt of its request
  std::string tenant;      // with a prompt: the tenant of its request
  bool cache = false;      // with a prompt: explain a cache miss
  std::string request_id;  // without a prompt: only this request; empty: all
  int last = 1;            // without a prompt: the number of decisions
  bool json = false;       // one JSON object per line instead of tables
  int64_t timeout_ms = 60'000;
};

// Returns the exit code (common/base/exit_code.h); an error and its reason are on `err`.
int RunExplain(const ExplainOptions& options, std::ostream& out, std::ostream& err);

// What was different, and what it cost.
std::string CacheMissText(const v1::CacheMiss& miss);

// The choice, then a row for each candidate, with a star for the chosen workers. Numbers have
// units; a cost is a time, as the policy compares workers.
std::string DecisionTable(const v1::Decision& decision);

}  // namespace baton::cli

#endif  // BATON_CLI_EXPLAIN_H_
