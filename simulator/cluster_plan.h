// How many prefill and decode workers a load needs to keep two objectives: the 99th percentile of
// the time to the first token, and that of the gaps between tokens. Clusters of different sizes are
// simulated, from one decode worker on. Decode workers compute prompts where the router finds that
// cheaper, or all prompts where there is no prefill worker, but none for other workers.
#ifndef BATON_SIMULATOR_CLUSTER_PLAN_H_
#define BATON_SIMULATOR_CLUSTER_PLAN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "simulator/simulation.h"
#include "simulator/trace.h"

namespace baton::simulator {

struct ClusterQuestion {
  // The workers' shapes and costs, and the objectives slo_s and slo_gap_s. The numbers of workers
  // and the links are the plan's.
  Scenario scenario;
  double link_bytes_per_second = 1.25e9;  // of each pair's link
  double prefill_price = 1, decode_price = 1;
  int most_prefill = 64, most_decode = 64;
  // The router's flag. 0: decode workers compute no prompts, so there are prefill workers.
  int max_local_prefill_tokens = 16'384;
};

// What makes an objective fail, or fail first with fewer workers.
enum class Bottleneck {
  kNone,
  kPrefillQueue,  // prompts wait until they are begun
  kPromptTime,    // prompts that are begun take too long
  kDecodeSlots,   // requests wait until a decode worker runs fewer sequences
  kDecodeKv,      // requests wait for KV blocks of a decode worker
  kBatch,         // a step of a decode worker has too many sequences or too much context
  kTransfer,      // the KV of a prompt is too long on its way
  kPreemption,    // sequences lose their KV blocks and wait for others
  kUnanswered,    // requests were given up
};
std::string BottleneckText(Bottleneck bottleneck);

struct ClusterCell {
  int prefill = 0, decode = 0;
  double price = 0;
  CellResult result;
  bool first_token_holds = false, gap_holds = false;
  Bottleneck first_token_bottleneck = Bottleneck::kNone, gap_bottleneck = Bottleneck::kNone;

  bool holds() const { return first_token_holds && gap_holds; }
};

struct ClusterPlan {
  std::vector<ClusterCell> cells;  // those simulated, by numbers of prefill and decode workers
  // Index of the cheapest cell that holds both objectives; of equally cheap ones, that with the
  // fewest prefill workers.
  std::optional<int> cheapest;
  // What fails with one worker of that role less than the cheapest; kNone if it has only one.
  Bottleneck without_prefill = Bottleneck::kNone, without_decode = Bottleneck::kNone;
  int least_prefill = 0;  // by arithmetic: see LeastPrefillWorkers; 0: decode workers compute, too
};

// A lower bound on the workers that compute prompts and do nothing else, with any policy: the
// computing of the 99 % of its prompts that cost least, with a prefix cache of unlimited size and
// no fixed part of a step, must fit into the time from the first arrival until slo_s after the
// last.
int LeastPrefillWorkers(const Trace& trace, const Scenario& scenario);

// The longest load, from its first arrival to its last at the scenario's speed, in seconds: a week.
inline constexpr double kLongestLoad_s = 7 * 24 * 3600;

// INVALID_ARGUMENT if the trace has no request, is longer than kLongestLoad_s, or has a request
// that no worker of the scenario has room for, which is named by its number in order of arrival,
// from 1, and the trace's name.
absl::Status CheckFits(const Trace& trace, const Scenario& scenario);

// Simulates at most about most_prefill + most_decode + 10 * log2(the larger of them) clusters;
// `progress` is called after each. A cell's time is that of the simulation: about proportional to
// its steps, to requests times workers, and to the simulated time times workers, as each of them
// reports every report_every_us, also while it is idle. Equal arguments give equal results. Errors
// are those of CheckFits.
absl::StatusOr<ClusterPlan> PlanCluster(const Trace& trace, const ClusterQuestion& question,
                                        const std::function<void(const ClusterCell&)>& progress);

// One cluster of a plan.
ClusterCell SimulateCluster(const Trace& trace, const ClusterQuestion& question, int prefill,
                            int decode);

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_CLUSTER_PLAN_H_
