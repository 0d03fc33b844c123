// Routing by priced congestion: argmin Q + (1 + κ)·T.
//
// Q is a worker's queue, T the time to compute the prompt there, both in seconds. A prompt that is
// computed where its prefix is not cached delays all later prompts. The cost Q + T counts only this
// prompt's own wait: near saturation it spreads prefixes, loses hits, makes more work, and the
// queues grow without bound. So each second of computing has a price κ, the sum of two terms.
//
// The fleet's congestion, g · mean Q / mean T. As in any queue, what a second costs the others
// grows as ρ/(1 − ρ), with ρ the share of busy workers: that is g, within bounds. ρ is averaged
// over a minute, because a gain that followed the queues would amplify its own mistakes. An idle
// fleet chooses the fastest worker, a busy one the worker that computes least.
//
// The worker's own queue, (1 − ρ)/2 · Q / mean T. While other workers are idle, a queue consists of
// prompts whose prefix is cached there: a prompt without a cached prefix should not delay them. In
// a busy fleet this term vanishes.
//
// And a discount at the prompt's home. Routers do not know what other routers' prompts will leave
// in the caches, so each would send the next prompt of a session elsewhere. Prompts with the same
// first uncached block have one home, by rendezvous hashing, on which all routers agree. There κ is
// lower by 0.3 · (Q / (Q + 20 s))², Q the fleet's mean.
#ifndef BATON_ROUTER_ROUTING_PRICED_POLICY_H_
#define BATON_ROUTER_ROUTING_PRICED_POLICY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "router/routing/decayed_mean.h"
#include "router/routing/policy.h"

namespace baton::router {

struct PricedOptions {
  double min_gain = 0.5;
  double max_gain = 1.5;
  double own_queue = 0.5;
  double max_price = 128;
  double home_discount = 0.3;  // at the most
  double home_halfway_s = 20;  // mean queue at which it is a quarter of that
  // Prompts of which a decode worker lacks at most so many tokens may be computed there, if that is
  // cheaper than to bring them from a prefill worker. 0: never.
  int max_local_prefill_tokens = 512;
  // Different in each router: routers with equal reports must not all choose the same worker.
  uint64_t seed = 0;
};

class PricedPolicy final : public Policy {
 public:
  explicit PricedPolicy(const PricedOptions& options = PricedOptions()) : options_(options) {}

  absl::string_view name() const override { return "priced"; }
  // Decisions: "prefix" or "load", by whether anything is cached on the prefill worker; "local";
  // "decode_only"; "home": no report is fresh, so prompts with the same beginning go to their home.
  RouteChoice Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                     absl::Span<const Candidate> decode) override;
  void OnSent(const Candidate& prefill) override;

 private:
  int ChoosePrefill(const RouteQuery& query, absl::Span<const Candidate> prefill,
                    RouteChoice& choice);
  int ChooseDecode(const RouteQuery& query, absl::Span<const Candidate> decode, bool alone);
  int ChooseLocal(const RouteQuery& query, const Candidate& prefill, const Pricing& pricing,
                  absl::Span<const Candidate> decode, const Candidate& partner);

  // By queues_ and depths_. Updates the share of busy workers and the home key.
  Pricing PricingOf(const RouteQuery& query, absl::Span<const Candidate> prefill);
  // Prompts with an equal key have one home. The first `known_blocks` blocks do not count.
  uint64_t HomeKey(const RouteQuery& query, int known_blocks) const;

  const PricedOptions options_;
  double busy_share_ = 0;         // ρ
  std::optional<double> last_s_;  // the time of the last decision
  DecayedMean mean_service_s_;    // of the prompts sent
  uint64_t turn_ = 0;
  // Of the last decision, and of its candidates; kept for their memory.
  uint64_t home_key_ = 0;
  std::vector<double> queues_, costs_;
  std::vector<int> depths_;
};

// Older reports say nothing about queues: workers report at least every second.
inline constexpr double kStaleReport_s = 2.5;

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_PRICED_POLICY_H_
