// What a worker's card and reports say about the time of its steps and the KV that it holds, as
// operators get it (WorkerCosts in admin.proto).
#ifndef BATON_ROUTER_FLEET_WORKER_COSTS_H_
#define BATON_ROUTER_FLEET_WORKER_COSTS_H_

#include "baton/internal/v1/worker.pb.h"
#include "baton/v1/admin.pb.h"

namespace baton::router {

// Returns the harmonic mean of the rates of `load.links`, which is the rate at which KV moves if
// each link moves as much; 0 if the report has no link with a rate.
double MeanLinkRate(const internal::v1::LoadReport& load);

// `link_bytes_per_second`: the worker's last MeanLinkRate, as most reports have no links.
// REQUIRES: HasSaneShape(card).
v1::WorkerCosts WorkerCostsOf(const internal::v1::WorkerCard& card,
                              const internal::v1::LoadReport& load, double link_bytes_per_second);

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_WORKER_COSTS_H_
