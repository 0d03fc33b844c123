// Which prefill and which decode worker gets a request: a decision over plain numbers.
#ifndef BATON_ROUTER_ROUTING_POLICY_H_
#define BATON_ROUTER_ROUTING_POLICY_H_

#include <algorithm>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/kv/prefix_key.h"
#include "router/fleet/worker.h"
#include "router/routing/linear_cost.h"

namespace baton::router {

// One ready worker as the router knows it now: its last report, plus this router's dispatches
// since.
struct Candidate {
  int worker = 0;          // its number in the Roster
  int matched_blocks = 0;  // of the prompt, from its start, cached there or on its way there
  int running = 0;
  int queued = 0;  // `sent` included
  int sent = 0;    // by this router, and in no report yet
  int64_t queued_tokens = 0;
  int free_blocks = 0;  // can be below 0: dispatched for more than there is
  int total_blocks = 0;
  // By the estimated cost of prefill there; see cost_estimates.h.
  double queue_s = 0;       // Q: until the prompts before this one are computed
  double service_s = 0;     // T: to compute what is not cached of this one
  bool cost_known = false;  // some worker has reported its cost: queue_s and service_s hold
  // Not 0: some of that is fetched from another worker or loaded from the worker's KV tiers, which
  // takes so long, beside the queue, and spares fetch_saves_s of service_s.
  double fetch_s = 0;
  double fetch_saves_s = 0;
  int tier_blocks = 0;  // of the prompt, that are loaded from tiers
  // Until computing the prompt begins there.
  double wait_s() const { return std::max(queue_s, fetch_s); }
  double computing_s() const { return service_s - fetch_saves_s; }
  // Decode workers.
  LinearCost step = kDefaultDecodeCost;  // as estimated
  int64_t context_tokens = 0;  // of the sequences that have blocks, and of those just sent there
  int max_sequences = 0;       // places in the batch; 0: unknown
  double silence_s = 0;        // since its last report
  uint64_t identity = 0;       // the same in all routers
};

class LinkRates;

struct RouteQuery {
  double now_s = 0;  // monotonic
  int prompt_tokens = 0;
  int prompt_blocks = 0;  // that the prompt will take, the partial last one included
  int block_tokens = 16;
  absl::Span<const kv::PrefixKey> keys = {};
  // To bring the KV of one block from a prefill to a decode worker, beyond what is hidden behind
  // computing: the mean over the fleet, for pairs of whose link nothing is known.
  double block_transfer_s = 0;
  const LinkRates* links = nullptr;  // null: nothing is known of any link
  double block_bytes = 0;            // of a block's KV
  double layer_share = 0;            // of its KV, the part of one layer
  double answer_tokens = 0;          // expected of this request
  double mean_answer_tokens = 0;     // of all requests
};

// The price of a second of computing, beyond that second, for one prompt. Zero where the policy has
// no prices.
struct Pricing {
  double fleet = 0;      // on every worker
  double own_queue = 0;  // and for each second of the worker's queue
  double highest = 0;    // bound of the sum
  int home = kNoWorker;  // the prompt's home (Candidate::worker)
  double home_discount = 0;

  double Price(const Candidate& c) const {
    const double price = std::min(highest, fleet + own_queue * c.queue_s);
    return c.worker == home ? (1 - home_discount) * price : price;
  }
  // What is fetched or loaded takes a place in the cache as if it was computed: its price stays.
  double Cost(const Candidate& c) const {
    return c.wait_s() - c.fetch_saves_s + (1 + Price(c)) * c.service_s;
  }
};

// Indexes into the candidates given.
struct RouteChoice {
  int prefill = -1;  // none was given, or the decode worker does better alone
  int decode = 0;    // -1: none was given
  // Why, as a metric label: static text.
  absl::string_view decision;
  Pricing pricing;  // by which prefill workers were compared
  // With links: the least time to compute the prompt. A move is compared as if that much of it was
  // hidden on each worker. With each one's own time, computing would pay for itself as long as the
  // KV is on its way, and prompts would leave the workers that have them cached.
  double hidden_s = 0;
};

// Called under the router's lock: quick, no I/O. Need not be thread-safe.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual absl::string_view name() const = 0;
  // Without prefill candidates, the decode worker computes the prompt, too; without decode
  // candidates, the prefill worker answers alone. REQUIRES: some candidate.
  virtual RouteChoice Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                             absl::Span<const Candidate> decode) = 0;
  // A prompt was sent to that prefill worker, as it was when it was chosen. Not called for
  // decisions that are only asked for, or refused.
  virtual void OnSent(const Candidate& /*prefill*/) {}
};

// Prefill: longest cached prefix, then fewest tokens to compute before this prompt.
// Decode: one that has room for the prompt, then fewest sequences, then most free blocks. Of those
// that are to compute the prompt themselves: room, then longest cached prefix, then as above.
// Ties are broken in turn. Needs no costs, and lets popular prefixes pile up on one worker.
class PrefixThenLoad final : public Policy {
 public:
  absl::string_view name() const override { return "prefix_then_load"; }
  RouteChoice Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                     absl::Span<const Candidate> decode) override;

 private:
  uint64_t turn_ = 0;
};

// Prefill workers in turn and decode workers in turn, regardless of cache and load; decode workers
// with room for the prompt before those without. Turns go by the workers' numbers. A baseline for
// the other policies.
class RoundRobin final : public Policy {
 public:
  absl::string_view name() const override { return "round_robin"; }
  // Decisions: "prefix" or "load", by whether anything is cached on the prefill worker;
  // "decode_only".
  RouteChoice Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                     absl::Span<const Candidate> decode) override;

 private:
  // Candidate::worker of the last choice.
  int last_prefill_ = kNoWorker;
  int last_decode_ = kNoWorker;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_POLICY_H_
