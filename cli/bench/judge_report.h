// The figures of a `baton bench judge` run.
#ifndef BATON_CLI_BENCH_JUDGE_REPORT_H_
#define BATON_CLI_BENCH_JUDGE_REPORT_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench/figures.h"
#include "cli/bench/judge.h"
#include "cli/load_generator.h"

namespace baton::cli {

// Requests of one kind in one round.
struct JudgePhase {
  std::string server;   // "baton" or "peer"
  std::string verdict;  // one of kJudgeVerdicts
  // "cold": each item behind a new rubric, one at a time. "warm": all behind a cached one.
  // "rubric": new rubrics without an item, one at a time; request i was sent right after cold item
  // i.
  std::string prefix;
  int round = 0;
  double wall_s = 0;              // of all requests; of one at a time, the sum of their latencies
  std::vector<Outcome> outcomes;  // in the order of the items
};

struct JudgeResult {
  std::string date, model;
  std::string peer_model, peer_version;  // empty: no peer, or the peer does not say
  std::vector<JudgePhase> phases;        // in the order in which they ran
};

// The phases of one server, verdict and prefix. Latencies are from sending to the end of the
// answer; they, tokens and stages are those of successful requests.
struct JudgeFigures {
  std::string server, verdict, prefix;
  Tally tally;
  std::map<int, double> item_ms;  // by round: wall time for each successful item
  std::vector<double> latency_ms, ttft_ms;
  // Sums of the stages in Timings, and what else the latencies have: the router, the network and
  // the client. A peer reports no stages.
  double queue_ms = 0, prefill_ms = 0, kv_transfer_ms = 0, decode_ms = 0, other_ms = 0;
};
std::vector<JudgeFigures> CollectJudge(const JudgeResult& result);

// The time to compute an item's tokens behind the rubric's: the median of the differences between
// the latency of a cold item and that of the new rubric sent after it. Costs that do not depend on
// the length cancel out. Nullopt without such pairs, or if the median is not above 0.
std::optional<double> ComputeItemMs(const JudgeResult& result, const std::string& server);

// The peer's time for an item divided by Baton's, by round.
std::vector<double> PeerRatios(const std::vector<JudgeFigures>& figures, const std::string& verdict,
                               const std::string& prefix);

std::string FormatJudge(const JudgeResult& result, const JudgeOptions& options);
std::string JudgeJson(const JudgeResult& result, const JudgeOptions& options);
// An SVG: items a second by round, and the distribution of latencies by verdict.
std::string JudgePlot(const JudgeResult& result, const JudgeOptions& options);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_JUDGE_REPORT_H_
