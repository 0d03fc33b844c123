// Routing by priced congestion.
//
// A prompt computed where its prefix is not cached takes time from everyone who comes after it. A
// cost that counts only this prompt's own wait, Q + T, ignores that: near saturation it spreads
// prefixes, loses hits, makes more work, and the queues grow without bound. So each second of
// computing has a price that rises with the congestion of the fleet: argmin Q + (1 + κ)·T, with
// κ = g · mean Q / mean T, bounded. An idle fleet takes the fastest worker, a busy one the one
// that computes least. What a second taken costs the others grows as ρ/(1 − ρ), as in any queue,
// with ρ the share of workers that have something to do: that is g, within bounds, and ρ is taken
// over a minute, for a gain that follows the queues themselves would feed on its own mistakes.
#ifndef BATON_ROUTER_PRICED_POLICY_H_
#define BATON_ROUTER_PRICED_POLICY_H_

#include <cstdint>
#include <vector>

#include "router/decayed_mean.h"
#include "router/policy.h"

namespace baton::router {

struct PricedOptions {
  double min_gain = 0.5;
  double max_gain = 4;
  double max_price = 32;
  // Prompts of which a decode worker lacks at most so many tokens may be computed there, if that is
  // cheaper than to bring them from a prefill worker. 0: never.
  int max_local_prefill_tokens = 512;
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

 private:
  int ChoosePrefill(const RouteQuery& query, absl::Span<const Candidate> prefill,
                    RouteChoice& choice);
  int ChooseDecode(const RouteQuery& query, absl::Span<const Candidate> decode, bool alone);
  int ChooseLocal(const RouteQuery& query, const Candidate& prefill, double price,
                  absl::Span<const Candidate> decode, const Candidate& partner);

  // By queues_: notes how many of the fleet are busy now; the price of a second of computing.
  double Price(double now_s);

  const PricedOptions options_;
  double busy_share_ = 0;       // ρ
  double last_s_ = -1;          // the time of the last decision; none yet
  DecayedMean mean_service_s_;  // of the prompts sent
  uint64_t turn_ = 0;
  // Of the candidates of a decision; kept for their memory.
  std::vector<double> queues_, costs_;
  std::vector<int> depths_;
};

// Reports older than this say nothing of queues: workers report every second at least.
inline constexpr double kStaleReport_s = 2.5;

}  // namespace baton::router

#endif  // BATON_ROUTER_PRICED_POLICY_H_
