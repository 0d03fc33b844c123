// Routing by priced congestion: argmin Q + (1 + κ)·T.
//
// Q is a worker's queue, T the time to compute the prompt there, both in seconds. A prompt that is
// computed where its prefix is not cached delays all later prompts. The cost Q + T counts only this
// prompt's own wait: near saturation it spreads prefixes, loses hits, makes more work, and the
// queues grow without bound. So each second of computing has a price κ, the sum of two terms.
//
// The fleet's congestion, g · mean Q / mean T, with mean Q over the workers and mean T over the
// prompts sent lately. Here g = ρ/(1 − ρ), within min_gain and max_gain, and ρ is the share of busy
// workers: as in any queue, the delay that a second of work causes others grows this way. ρ is
// averaged over a minute, because a gain that followed the queues would amplify its own mistakes.
// An idle fleet chooses the fastest worker, a busy one the worker that computes least.
//
// The worker's own queue, (1 − ρ)/2 · Q / mean T. While other workers are idle, a queue consists of
// prompts whose prefix is cached there: a prompt without a cached prefix should not delay them. In
// a busy fleet this term vanishes.
//
// Where the links to decode workers are measured, a pair also costs the time in which its link
// moves the KV, as far as computing does not hide it. The pair is chosen in steps: the prefill
// worker by the cost above; a decode worker for it, by load and link; for this one a prefill worker
// again, by cost and link. All pairs would be a thousand times as many.
//
// With --kv-fetch-bytes-per-second, KV that another worker has cached need not be computed: the
// prompt's own wait is then the longer of queue and fetch, which go on side by
// side, and what is left to compute. κ stays that of all of T: what is fetched takes as much of the
// cache as what is computed. Without that, a busy fleet copies prefixes from worker to worker until
// none has room for its own (docs/results/kv_fetch.md).
//
// A decode worker may compute a prompt, too: the one that answers (together), or, where workers
// offer it, another one (a lender). That costs its queue, the computing, which goes on in steps
// beside its answers, and the delay of each of these answers; for a lender also the move of the KV.
// The prefill worker costs Q + T and the move, and half of Q more for the prompts that come behind
// this one. Where KV moves, the answer is slow beside what prompts its own worker has left to
// compute by then. The cheapest of the three ways is taken. κ is no part of it: it compares workers
// that only compute prompts.
//
// Finally, κ is discounted at the prompt's home. Routers do not know what other routers' prompts
// will leave in the caches, so without homes each router would send prompts of one session to a
// different worker. The home is chosen by rendezvous hashing of the prompt's first block that no
// worker has cached; routers whose reports agree choose the same home. There κ is multiplied by
// 1 - 0.3 · (Q̄ / (Q̄ + 20 s))², with Q̄ the fleet's mean queue.
#ifndef BATON_ROUTER_ROUTING_PRICED_POLICY_H_
#define BATON_ROUTER_ROUTING_PRICED_POLICY_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/routing/decayed_mean.h"
#include "router/routing/decode_price.h"
#include "router/routing/policy.h"

namespace baton::router {

struct PricedOptions {
  double min_gain = 0.5;
  double max_gain = 1.5;
  double own_queue = 0.5;
  double max_price = 128;
  double home_discount = 0.3;      // the largest
  double home_queue_scale_s = 20;  // the mean queue at which the discount is a quarter of that
  // A decode worker that lacks at most this many tokens of a prompt may compute them, if that is
  // cheaper than bringing them from a prefill worker. 0: never. A bound, since the price is of one
  // moment: what is sent to a worker while it computes a long prompt waits for each of its steps.
  int max_local_prefill_tokens = 16'384;
  // Draws candidates, and breaks ties among workers that were never sent a request. It differs
  // between routers, so that routers with equal reports do not all choose the same worker.
  uint64_t seed = 0;
};

class PricedPolicy final : public Policy {
 public:
  explicit PricedPolicy(const PricedOptions& options = PricedOptions()) : options_(options) {}

  absl::string_view name() const override { return "priced"; }
  // Decisions: "prefix" or "load", by whether anything is cached on the prefill worker; "local": a
  // decode worker computes what it lacks; "lent": another decode worker computes for the one that
  // answers; "decode_only": a decode worker does both, as there is no prefill worker;
  // "home": no report is fresh, so prompts with the same beginning go to their home.
  RouteChoice Choose(const RouteQuery& query, const Candidates& prefill,
                     absl::Span<const Candidate> decode) override;
  void OnSent(const Candidate& prefill) override;

 private:
  // What a choice has found out of the candidates.
  struct Compared {
    CostColumn costs;
    CostColumn moved_costs;  // with the move to a decode worker
    uint64_t home_key = 0;
    std::vector<int> looked_at;  // decode candidates, in order
    // The prices of these and of those looked at before; other costs are no number.
    std::vector<double> decode_costs;
    std::vector<DecodePrice> decode_prices;
  };

  int ChoosePrefill(const RouteQuery& query, const Candidates& prefill, RouteChoice& choice,
                    Compared& compared);
  // False: no more is to be chosen.
  bool ChooseByLinks(const RouteQuery& query, const Candidates& prefill,
                     absl::Span<const Candidate> decode, uint64_t turn, RouteChoice& choice,
                     Compared& compared);
  // `alone`: there is no prefill worker. `prefill`: the one that computes the prompt; null: any.
  // `turn`: decides among equals, and which workers are looked at.
  int ChooseDecode(const RouteQuery& query, absl::Span<const Candidate> decode, bool alone,
                   const Candidate* prefill, uint64_t turn, Compared& compared);
  static void LookAtDecode(const RouteQuery& query, absl::Span<const Candidate> decode, bool alone,
                           const Candidate* prefill, uint64_t turn, bool draws, Compared& compared);
  static int CheapestDecode(absl::Span<const Candidate> decode, uint64_t turn,
                            const Compared& compared);
  // Whether a decode worker had better compute the prompt, for itself or for choice->decode, which
  // was chosen to go with `prefill`. Sets the choice, then.
  void ChooseLocal(const RouteQuery& query, const Candidate& prefill,
                   absl::Span<const Candidate> decode, uint64_t turn, RouteChoice* choice) const;

  // Updates the share of busy workers and sets the home key.
  Pricing PricingOf(const RouteQuery& query, const Candidates& prefill, uint64_t* home_key);
  // Prompts with an equal key have one home. known_blocks: how many of the prompt's first blocks
  // some worker has cached.
  uint64_t HomeKey(const RouteQuery& query, int known_blocks) const;

  const PricedOptions options_;
  std::atomic<uint64_t> turn_{0};  // counts decisions, so that equals are chosen in turn
  absl::Mutex mutex_;
  double busy_share_ ABSL_GUARDED_BY(mutex_) = 0;         // ρ
  std::optional<double> last_s_ ABSL_GUARDED_BY(mutex_);  // the time of the last decision
  DecayedMean mean_service_s_ ABSL_GUARDED_BY(mutex_);    // of the prompts sent
};

// Older reports say nothing about queues: workers report at least every second.
inline constexpr double kStaleReport_s = 2.5;

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_PRICED_POLICY_H_
