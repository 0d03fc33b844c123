// The time of a prefill or a decode step: a sum of terms, as workers report it.
#ifndef BATON_ROUTER_ROUTING_LINEAR_COST_H_
#define BATON_ROUTER_ROUTING_LINEAR_COST_H_

#include "common/base/expert_choice.h"
#include "common/base/prefill_work.h"

namespace baton::router {

// In seconds; the terms of common/worker/step_cost.h.
struct LinearCost {
  double fixed_s = 0;
  double first_s = 0;   // a prompt token, or a sequence
  double second_s = 0;  // a pair of tokens, or a token of context
  double expert_s = 0;  // an expert of each layer that is read
  ExpertChoice choice = {};

  double Seconds(double fixed, double first, double second, double experts = 0) const {
    return fixed * fixed_s + first * first_s + second * second_s + experts * expert_s;
  }
  // A prompt of `tokens` behind `cached` ones.
  double Prefill(double tokens, double cached) const {
    PrefillWork work;
    work.Add(tokens, cached);
    return Seconds(1, work.tokens, work.pairs);
  }
  double DecodeStep(double sequences, double context_tokens) const {
    return Seconds(1, sequences, context_tokens, choice.Distinct(sequences));
  }
  // What one sequence more adds to a decode step of `sequences`, without its context.
  double OneMore(double sequences) const {
    return first_s + expert_s * (choice.Distinct(sequences + 1) - choice.Distinct(sequences));
  }
  friend bool operator==(const LinearCost&, const LinearCost&) = default;
  LinearCost operator*(double factor) const {
    return {fixed_s * factor, first_s * factor, second_s * factor, expert_s * factor, choice};
  }
};

// Used until a worker has reported: an H100-class worker with a model of some 8 B.
inline constexpr LinearCost kDefaultPrefillCost = {5e-3, 1.25e-4, 3.9e-9};
inline constexpr LinearCost kDefaultDecodeCost = {10e-3, 5e-5, 1e-7};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_LINEAR_COST_H_
