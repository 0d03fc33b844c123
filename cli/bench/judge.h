// `baton bench judge`: a model as a judge. Many items are behind one long rubric, and each gets a
// verdict of one token or of many: items a second, latencies and their stages, with the rubric in a
// prefix cache or not, also beside a peer that gets the same items in turn.
#ifndef BATON_CLI_BENCH_JUDGE_H_
#define BATON_CLI_BENCH_JUDGE_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "cli/bench/judge_items.h"
#include "cli/bench/output.h"
#include "cli/bench/target.h"

namespace baton::cli {

// score: Score with two labels, all warm items in one call; token: Generate with one token; text:
// Generate with verdict_tokens. A peer answers score as token.
inline const std::vector<std::string> kJudgeVerdicts = {"score", "token", "text"};

struct JudgeOptions {
  TargetOptions target;    // the router
  std::string peer;        // "http://host:port" of a server of OpenAI's API; empty: none
  std::string peer_model;  // empty: the first that the peer lists
  JudgeShape shape;        // with the verdict score: texts
  std::vector<std::string> verdicts = kJudgeVerdicts;
  int verdict_tokens = 100;
  int rounds = 3;       // each with new rubrics and items
  int items = 32;       // of a round and verdict, behind one rubric that is cached
  int cold_items = 2;   // of a round and verdict, each behind a new rubric, one after another
  int concurrency = 8;  // warm items at once
  uint64_t seed = 0;
  int vocab_size = 0;  // token ids are below it; 0: of the router's model
  std::vector<double> percentiles = {50, 90, 99};
  OutputOptions output;
};

// Returns the exit code (common/base/exit_code.h): kExitFailure if every request failed.
int RunJudge(const JudgeOptions& options, std::ostream& out, std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_JUDGE_H_
