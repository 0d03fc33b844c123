// The router's own roster, planner and policy under the simulation's time, which gets the events of
// Watch streams.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_BATON_ROUTER_H_
#define BATON_BENCHMARKS_ROUTER_SIM_BATON_ROUTER_H_

#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "benchmarks/router_sim/sim_router.h"
#include "router/routing/policy.h"

namespace baton::benchmarks {

using MakePolicy = std::function<std::unique_ptr<router::Policy>(uint64_t seed)>;

MakeRouter MakeBatonRouter(MakePolicy make_policy);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_ROUTER_SIM_BATON_ROUTER_H_
