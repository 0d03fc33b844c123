// Routing by priced congestion: argmin Q + (1 + κ)·T.
//
// A prompt computed where its prefix is not cached takes time from everyone who comes after it. A
// cost that counts only this prompt's own wait, Q + T, ignores that: near saturation it spreads
// prefixes, loses hits, makes more work, and the queues grow without bound. So each second of
// computing has a price, which is made of three things.
//
// The fleet's congestion, g · mean Q / mean T. What a second taken costs the others grows as
// ρ/(1 − ρ), as in any queue, with ρ the share of workers that have something to do: that is g,
// within bounds, and ρ is taken over a minute, for a gain that follows the queues themselves would
// feed on its own mistakes. An idle fleet takes the fastest worker, a busy one the one that
// computes least.
//
// The worker's own queue, (1 − ρ)/2 · Q / mean T. As long as others are idle, a queue is of prompts
// whose prefix is there: they had better not wait for one that has none. In a busy fleet all wait
// alike, and this vanishes.
//
// A discount at home. What waits in a worker's queue for another router's client, this router is
// not told of before it is computed; with it, of sessions that go on meanwhile, each router would
// send the next prompt elsewhere. So all prompts whose first block that nobody has is the same have
// one home, on which routers agree without a word, and which is cheaper the longer prompts wait: by
// 0.3 · (Q / (Q + 20 s))², Q the fleet's mean.
#ifndef BATON_ROUTER_ROUTING_PRICED_POLICY_H_
#define BATON_ROUTER_ROUTING_PRICED_POLICY_H_

#include <cstdint>
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
  // Another one in each router: routers that hear the same must not all choose the same worker.
  uint64_t seed = 0;
};

class PricedPolicy final : public Policy {
 public:
  explicit PricedPolicy(const PricedOptions& options = PricedOptions()) : options_(options) {}

  absl::string_view name() const override { return "priced"; }
  // Decisions: "prefix" or "load", by whether anything is cached on the prefill worker; "local",
  // "decode_only"; "home": no report is fresh, so prompts with the same beginning go to the same
  // worker, on which all routers agree.
  RouteChoice Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                     absl::Span<const Candidate> decode) override;
  void OnSent(const Candidate& prefill) override;

 private:
  int ChoosePrefill(const RouteQuery& query, absl::Span<const Candidate> prefill,
                    RouteChoice& choice);
  int ChooseDecode(const RouteQuery& query, absl::Span<const Candidate> decode, bool alone);
  int ChooseLocal(const RouteQuery& query, const Candidate& prefill, const Pricing& pricing,
                  absl::Span<const Candidate> decode, const Candidate& partner);

  // By queues_ and depths_: notes how many of the fleet are busy now, and the home key.
  Pricing PricingOf(const RouteQuery& query, absl::Span<const Candidate> prefill);
  // What prompts have in common that go to one home, if so many blocks are no reason to.
  uint64_t HomeKey(const RouteQuery& query, int known_blocks) const;

  const PricedOptions options_;
  double busy_share_ = 0;       // ρ
  double last_s_ = -1;          // the time of the last decision; none yet
  DecayedMean mean_service_s_;  // of the prompts sent
  uint64_t turn_ = 0;
  // Of the last decision, and of its candidates; kept for their memory.
  uint64_t home_key_ = 0;
  std::vector<double> queues_, costs_;
  std::vector<int> depths_;
};

// Reports older than this say nothing of queues: workers report every second at least.
inline constexpr double kStaleReport_s = 2.5;

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_PRICED_POLICY_H_
