// One routing decision as people can read it: the candidates, what the router predicted for each,
// and the choice. Plain data; filled by RoutePlanner::Choose, kept by DecisionLog.
#ifndef BATON_ROUTER_ROUTING_DECISION_H_
#define BATON_ROUTER_ROUTING_DECISION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/admin.pb.h"
#include "router/fleet/worker.h"

namespace baton::router {

// A decision keeps at most so many candidates of each role: the chosen one, and the cheapest of
// those that the policy compared. A fleet of a thousand workers would otherwise fill the log.
inline constexpr int kMaxExplainedCandidates = 8;

// One worker as the policy saw it.
struct DecisionCandidate {
  int worker = kNoWorker;
  v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
  std::string address;         // filled by RoutePlanner: a number may be another worker's later
  int cached_tokens = 0;       // of the prompt, predicted to be cached there
  int tier_tokens = 0;         // that it would load from its KV tiers
  double queue_seconds = 0;    // Q: until the work before this prompt is done
  double service_seconds = 0;  // T: to compute what is not cached; decode: per token
  // To move the KV between it and the chosen worker of the other role, beyond what is hidden behind
  // computing; 0 where no link is measured.
  double transfer_seconds = 0;
  double cost = 0;  // the policy takes the lowest; its unit is the policy's
  // Why it could not be chosen; empty if it could. Static text: "failed lately", "no room", …
  absl::string_view excluded;
  std::string pool;  // the worker's
};

struct Decision {
  std::string request_id;  // filled by the caller of Choose
  absl::Time time;
  int prompt_tokens = 0;
  std::vector<DecisionCandidate> candidates;  // prefill first, each role by cost
  // Candidates in all, those left out of `candidates` included.
  int prefill_candidates = 0;
  int decode_candidates = 0;

  int computes = kNoWorker;  // the worker that computes the prompt
  int answers = kNoWorker;   // the worker that answers; it may be the same
  std::string computes_address;
  std::string answers_address;
  absl::string_view label;   // static text, as the metric's `decision`
  absl::string_view policy;  // static text
  double kappa = 0;  // price of a second of service on a prefill worker; 0: the policy has none

  // What was predicted of the chosen workers.
  int predicted_cached_tokens = 0;    // tier_tokens included
  double predicted_ttft_seconds = 0;  // 0: not known

  std::string kv_holder_address;  // as in Route; empty: none
  int kv_holder_tokens = 0;

  std::string pool;                     // that the request asks for
  std::vector<v1::WorkerRole> spilled;  // as in Route
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_DECISION_H_
