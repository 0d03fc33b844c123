// The expected time to answer a request on a decode worker, its effect on other requests included.
#ifndef BATON_ROUTER_ROUTING_DECODE_PRICE_H_
#define BATON_ROUTER_ROUTING_DECODE_PRICE_H_

#include "router/routing/policy.h"

namespace baton::router {

// In seconds. Workers are compared by the total; the parts are for explanations and tests.
struct DecodePrice {
  // The worker has no blocks for the prompt now.
  bool full = false;
  double prompt_s = 0;  // to bring the missing KV, or to compute the prompt there
  double wait_s = 0;    // for a place in the batch, and for the blocks that the batch will grow to
  double answer_s = 0;  // the answer's tokens, at the pace of the batch that the request joins
  double others_s = 0;  // added to the steps of the sequences that run there
  double total() const { return prompt_s + wait_s + answer_s + others_s; }
};

// `alone`: there is no prefill worker, the decode worker computes the prompt itself.
//
// A step's time is a function of its sequences and their context (Candidate::step). A request pays
// for its own steps and, as with any congestion price, for the time that it costs the running ones.
// KV that the session has left on the worker saves its transfer, and no more.
DecodePrice PriceDecode(const RouteQuery& query, const Candidate& worker, bool alone);

// A step of the batch with `more` sequences of so many tokens of context each.
double DecodeStepSeconds(const Candidate& worker, double more, double context_tokens);

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_DECODE_PRICE_H_
