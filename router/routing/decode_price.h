// The expected time to answer a request on a decode worker, its effect on other requests included.
#ifndef BATON_ROUTER_ROUTING_DECODE_PRICE_H_
#define BATON_ROUTER_ROUTING_DECODE_PRICE_H_

#include "absl/types/span.h"
#include "router/routing/policy.h"

namespace baton::router {

// In seconds. Workers are compared by the total; the parts are for explanations and tests.
struct DecodePrice {
  // The worker has no blocks for the prompt now.
  bool full = false;
  double prompt_s = 0;  // to bring the missing KV, or to compute the prompt there
  double wait_s = 0;    // for a place in the batch, and for the blocks that the batch will grow to
  double behind_s = 0;  // lost beside prompts that the worker has to compute
  double answer_s = 0;  // the answer's tokens, at the pace of the batch that the request joins
  double others_s = 0;  // added to the steps of the sequences that run there
  double total() const { return prompt_s + wait_s + behind_s + answer_s + others_s; }
};

// `alone`: there is no prefill worker, the decode worker computes the prompt itself. `prefill`: the
// worker that does; null: not chosen yet, and the KV counts as if it came now.
//
// A step's time is a function of its sequences and their context (Candidate::step). A request pays
// for its own steps and, as with any congestion price, for the time that it costs the running ones.
// KV that the session has left on the worker saves its transfer, and no more.
DecodePrice PriceDecode(const RouteQuery& query, const Candidate& worker, bool alone,
                        const Candidate* prefill = nullptr);
// Sets prompt_s and behind_s, the parts that depend on the prefill worker.
void PricePrompt(const RouteQuery& query, const Candidate& worker, bool alone,
                 const Candidate* prefill, DecodePrice* price);

// The KV that a decode worker lacks of a prompt, on its way from a prefill worker.
class KvMove {
 public:
  KvMove(const RouteQuery& query, const Candidate& decode);
  // What the move takes beyond `hidden_s`, the time that the prompt is computed: layers cross while
  // the next ones are computed, the last one crosses afterwards. In seconds, at the measured rate
  // of the link; query.block_transfer_s for each block where nothing is known of it.
  double SecondsFrom(int prefill, double hidden_s) const {
    const float byte_s = seconds_per_byte_.empty() ? 0 : seconds_per_byte_[prefill];
    return byte_s == 0 ? unknown_s_ : SecondsAt(byte_s, hidden_s);
  }
  double SecondsFrom(const Candidate& prefill) const {
    return SecondsFrom(prefill.worker, prefill.computing_s());
  }
  // SecondsFrom each, added to `costs`, in column->Resize(): not sealed.
  void AddTo(absl::Span<const double> costs, const Candidates& prefill, double hidden_s,
             CostColumn* column) const;

 private:
  void AddTo(const double* cost, const float* byte_s, double hidden_s,
             absl::Span<double> sums) const;
  // At a known rate.
  double SecondsAt(float byte_s, double hidden_s) const {
    const double move_s = bytes_ * byte_s;
    const double over_s = move_s - hidden_s;
    return (over_s > 0 ? over_s : 0) + layer_share_ * move_s;
  }

  absl::Span<const float> seconds_per_byte_;  // by prefill worker; empty: nothing is known
  double bytes_ = 0;
  double layer_share_ = 0;
  double unknown_s_ = 0;
};

// What an answer loses on a worker that still has prompts to compute when the answer's KV comes,
// `ready_s` from now: it gets one token in each of their steps. In seconds.
double BehindPrompts(const RouteQuery& query, const Candidate& worker, double ready_s);

// To compute the prompt on a decode worker: its queue, the computing in steps beside its answers,
// and the delay of each of these answers. In seconds. An answer whose KV is on its way waits for
// the computing worker, not for this prompt; of those that prefill workers compute now, each comes
// in the middle of it, and is delayed by half.
double ComputeBesideAnswers(const RouteQuery& query, const Candidate& worker);

// The same on a decode worker that lends itself to `answers`, with the move of the KV, and behind
// the prompts of `answers`.
double ComputeForAnother(const RouteQuery& query, const Candidate& lender,
                         const Candidate& answers);

// A step of the batch with `more` sequences of so many tokens of context each.
double DecodeStepSeconds(const Candidate& worker, double more, double context_tokens);

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_DECODE_PRICE_H_
