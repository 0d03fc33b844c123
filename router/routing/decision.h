// One routing decision as it can be told to people: who could have got the request, what the router
// believed of each, and who got it. Plain data; filled by Membership::Choose, kept by DecisionLog.
#ifndef BATON_ROUTER_ROUTING_DECISION_H_
#define BATON_ROUTER_ROUTING_DECISION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/admin.pb.h"
#include "router/routing/pair_health.h"

namespace baton::router {

// Of each role, a decision keeps so many candidates: the cheapest, the chosen one among them.
// Enough to see why; a fleet of a thousand workers would otherwise fill the log with what nobody
// reads.
inline constexpr int kMaxTellableCandidates = 8;

// One worker as the policy saw it.
struct DecisionCandidate {
  int worker = kNoWorker;
  v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
  std::string address;         // filled by Membership: a number may be another worker's later
  int cached_tokens = 0;       // of the prompt, predicted to be cached there
  double queue_seconds = 0;    // Q: until the work before this prompt is done
  double service_seconds = 0;  // T: to compute what is not cached; decode: per token
  double cost = 0;             // what the policy took the lowest of; its unit is the policy's
  // Why it could not be chosen; empty if it could. Static text: "failed lately", "no room", …
  absl::string_view excluded;
};

struct Decision {
  std::string request_id;  // filled by whoever asked
  absl::Time time;
  int prompt_tokens = 0;
  std::vector<DecisionCandidate> candidates;  // prefill first, each role by cost
  // How many there were, those left out of `candidates` included.
  int prefill_candidates = 0;
  int decode_candidates = 0;

  int prefill = kNoWorker;  // kNoWorker: the decode worker computes the prompt
  int decode = kNoWorker;
  std::string prefill_address;
  std::string decode_address;
  absl::string_view label;   // static text, as the metric's `decision`
  absl::string_view policy;  // static text
  double kappa = 0;          // price of a second of service on `prefill`; 0: the policy has none

  // Of the chosen pair.
  int predicted_cached_tokens = 0;
  double predicted_ttft_seconds = 0;  // 0: not known
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_DECISION_H_
