// Runs the router's real roster, planner and policy on simulated time, and feeds the roster the
// events that Watch streams would deliver.
#ifndef BATON_SIMULATOR_BATON_ROUTER_H_
#define BATON_SIMULATOR_BATON_ROUTER_H_

#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "router/routing/policy.h"
#include "simulator/sim_router.h"

namespace baton::simulator {

using MakePolicy = std::function<std::unique_ptr<router::Policy>(uint64_t seed)>;

struct BatonOptions {
  bool hears_links = true;  // the rates of links that decode workers report
  bool kv_fetch = false;
  bool prices_fetches = false;  // by their rate, as an operator states it
  // Decode workers compute prompts, too: where that is cheaper, or all if there are no prefill
  // workers, which then is no tier that takes everything at once.
  bool computes_on_decode = false;
};
MakeRouter MakeBatonRouter(MakePolicy make_policy, BatonOptions options = {});

// The default policy, but that all prompts go to prefill workers.
std::unique_ptr<router::Policy> SimPolicy(uint64_t seed);
// The default policy, with the router's --max-local-prefill-tokens.
MakePolicy LocalPolicy(int max_local_prefill_tokens);

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_BATON_ROUTER_H_
