// Which prefill and which decode worker gets a request: a decision over plain numbers.
#ifndef BATON_ROUTER_ROUTING_POLICY_H_
#define BATON_ROUTER_ROUTING_POLICY_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/kv/kv_sizes.h"
#include "common/kv/prefix_key.h"
#include "router/routing/candidates.h"

namespace baton::router {

class LinkRates;

struct RouteQuery {
  double now_s = 0;  // monotonic
  int prompt_tokens = 0;
  int prompt_blocks = 0;  // that the prompt will take, the partial last one included
  int block_tokens = 16;
  absl::Span<const kv::PrefixKey> keys = {};
  int prefill_workers = 1;  // that may be chosen; has no meaning for requests of one worker
  // To bring the KV of one block from a prefill to a decode worker, beyond what is hidden behind
  // computing: the mean over the fleet, for pairs of whose link nothing is known.
  double block_transfer_s = 0;
  const LinkRates* links = nullptr;  // null: nothing is known of any link
  kv::KvSizes kv;                    // of the model
  double layer_share = 0;            // of its KV, the part of one layer
  double answer_tokens = 0;          // expected of this request
  double mean_answer_tokens = 0;     // of all requests

  // The pages that the prompt takes beside the blocks that a worker has of it.
  int PagesBeside(int matched_blocks) const { return kv.PagesOf(matched_blocks, prompt_blocks); }
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
  // The costs of all candidates, not sealed. What is fetched or loaded takes a place in the cache
  // as if it was computed: its price stays.
  absl::Span<double> Costs(const Candidates& candidates, CostColumn* column) const;
  double Cost(const Candidate& c) const {
    return c.wait_s() - c.fetch_saves_s + (1 + Price(c)) * c.service_s;
  }
};

// Indexes into the candidates given.
struct RouteChoice {
  int prefill = -1;  // none was given, or the decode worker does better alone
  int decode = 0;    // -1: none was given
  // Index into the decode workers: the one that computes the prompt for `decode`, instead of a
  // prefill worker. -1: none does.
  int lender = -1;
  // Why, as a metric label: static text.
  absl::string_view decision;
  Pricing pricing;  // by which prefill workers were compared
  // With links: the least time to compute the prompt. A move is compared as if that much of it was
  // hidden on each worker. With each one's own time, computing would pay for itself as long as the
  // KV is on its way, and prompts would leave the workers that have them cached.
  double hidden_s = 0;
  // What was computed of the candidates given and need not be computed again: costs by `pricing`;
  // with links, the same with the move to the chosen decode worker; and the totals of PriceDecode
  // for the chosen prefill worker, of those that were looked at (else no number). Null: nothing.
  // Valid until the thread's next call of the policy.
  const CostColumn* prefill_costs = nullptr;
  const CostColumn* moved_costs = nullptr;
  const std::vector<double>* decode_costs = nullptr;
};

// Thread-safe: decisions are made side by side. Called under the router's lock: quick, no I/O.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual absl::string_view name() const = 0;
  // Without prefill candidates, the decode worker computes the prompt, too; without decode
  // candidates, the prefill worker answers alone. REQUIRES: some candidate.
  virtual RouteChoice Choose(const RouteQuery& query, const Candidates& prefill,
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
  RouteChoice Choose(const RouteQuery& query, const Candidates& prefill,
                     absl::Span<const Candidate> decode) override;

 private:
  std::atomic<uint64_t> turn_{0};
};

// Prefill workers in turn and decode workers in turn, regardless of cache and load; decode workers
// with room for the prompt before those without. Turns go by the workers' numbers. A baseline for
// the other policies.
class RoundRobin final : public Policy {
 public:
  absl::string_view name() const override { return "round_robin"; }
  // Decisions: "prefix" or "load", by whether anything is cached on the prefill worker;
  // "decode_only".
  RouteChoice Choose(const RouteQuery& query, const Candidates& prefill,
                     absl::Span<const Candidate> decode) override;

 private:
  absl::Mutex mutex_;
  // Candidate::worker of the last choice.
  int last_prefill_ ABSL_GUARDED_BY(mutex_) = kNoWorker;
  int last_decode_ ABSL_GUARDED_BY(mutex_) = kNoWorker;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_POLICY_H_
