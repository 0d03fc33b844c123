// Re-implementations of other routers' scoring formulas at their default weights, and the baselines
// of every comparison (random, round robin, least loaded).
#ifndef BATON_BENCHMARKS_ROUTER_SIM_PEER_FORMULAS_H_
#define BATON_BENCHMARKS_ROUTER_SIM_PEER_FORMULAS_H_

#include <vector>

#include "benchmarks/router_sim/peer_router.h"

namespace baton::simulator::sweeps {

// Formulas that choose a prefill worker.
std::vector<PeerKind> PeerKinds();
// Formulas that choose a decode worker.
std::vector<PeerKind> DecodePeerKinds();

// A router for all tiers that are simulated. REQUIRES: `kind` is of PeerKinds() or
// DecodePeerKinds().
MakeRouter MakePeerRouter(const PeerKind& kind);

}  // namespace baton::simulator::sweeps

#endif  // BATON_BENCHMARKS_ROUTER_SIM_PEER_FORMULAS_H_
