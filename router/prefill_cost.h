// What computing a prompt takes: a + b·n + d·n·(c + n/2) for n tokens behind c cached ones.
#ifndef BATON_ROUTER_PREFILL_COST_H_
#define BATON_ROUTER_PREFILL_COST_H_

namespace baton::router {

// In seconds. The numbers of an H100-class worker with a model of some 8 B, which stand in until a
// worker has told its own.
struct PrefillCost {
  double fixed_s = 5e-3;
  double token_s = 1.25e-4;
  double pair_s = 3.9e-9;

  double Seconds(double tokens, double cached) const {
    return fixed_s + tokens * (token_s + pair_s * (cached + tokens / 2));
  }
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PREFILL_COST_H_
