// The formulas of other routers at their default weights (re-implemented, not the products), and
// the plain ones that every comparison should have.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_PEER_FORMULAS_H_
#define BATON_BENCHMARKS_ROUTER_SIM_PEER_FORMULAS_H_

#include <vector>

#include "benchmarks/router_sim/peer_router.h"

namespace baton::benchmarks {

// That choose a prefill worker.
std::vector<PeerKind> PeerKinds();
// That choose a decode worker.
std::vector<PeerKind> DecodePeerKinds();

// A router for all tiers that are simulated. REQUIRES: `kind` is of PeerKinds() or
// DecodePeerKinds().
MakeRouter MakePeerRouter(const PeerKind& kind);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_ROUTER_SIM_PEER_FORMULAS_H_
