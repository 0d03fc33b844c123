// `baton up --prefill auto`: whether this machine serves better with a prefill worker or without.
// Decided by a rule where the machine leaves no doubt, else by a measurement of a few seconds.
#ifndef BATON_CLI_PREFILL_CHOICE_H_
#define BATON_CLI_PREFILL_CHOICE_H_

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/load_generator.h"
#include "cli/local_cluster.h"

namespace baton::cli {

struct PrefillChoice {
  int prefill_workers = 0;  // 0: decode workers compute the prompts; 1
  std::string reason;       // for the user: what was measured, or the rule
};

// Medians of how a cluster answered the prompts of the measurement, without those that it refused.
// Infinity: not known.
struct AnswerTimes {
  int answers = 0;  // that ended well
  // From sending; of a prompt whose time ran out, that time.
  double ttft_ms = 0;
  double answer_ms = 0;  // to the last token
  double tpot_ms = 0;    // time per token after the first
};
AnswerTimes AnswerTimesOf(const std::vector<Outcome>& outcomes);

// `worker_flags` have the workers' --device, if the user gave one. `gpu_visible`: `--device auto`
// would take a GPU. Nullopt: only a measurement can tell.
std::optional<PrefillChoice> ChoosePrefillByRule(const std::vector<std::string>& worker_flags,
                                                 int usable_cores, bool gpu_visible);

// `with`: the times with a prefill worker, or why there are none. That worker takes memory for a
// second copy of the weights, so it must be better by more than noise: with 8 answers or more of
// each, and whole answers in less than 0.8 times the time. TTFT and time per token alone do not
// decide: on shared cores a prefill worker only moves time from the one to the other.
PrefillChoice ChoosePrefillByTimes(const AnswerTimes& without,
                                   const absl::StatusOr<AnswerTimes>& with, int usable_cores);

// Starts a cluster without and then one with a prefill worker, on free ports of loopback and
// without the router's flags, KV tiers and traces; sends both the same prompts, for at most 16
// seconds each, and ends them. `progress` gets a line before each.
//
// CANCELLED by cluster.stop_fd. The error of the cluster without a prefill worker; one of the other
// cluster is a reason to choose none. One thread, that of the clusters: see LocalCluster.
absl::StatusOr<PrefillChoice> MeasurePrefill(const ClusterOptions& cluster, int usable_cores,
                                             std::ostream& progress);

// By rule for this machine, else measured.
absl::StatusOr<PrefillChoice> ChoosePrefill(const ClusterOptions& cluster, std::ostream& progress);

}  // namespace baton::cli

#endif  // BATON_CLI_PREFILL_CHOICE_H_
