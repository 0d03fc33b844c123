// A router's knowledge of its workers and its choices among them, without a network: the
// simulator or a test says what a WorkerWatch would report.
#ifndef BATON_ROUTER_ROUTING_ROUTED_FLEET_H_
#define BATON_ROUTER_ROUTING_ROUTED_FLEET_H_

#include <string>
#include <vector>

#include "common/base/check.h"
#include "router/fleet/roster.h"
#include "router/prefix_index/prefix_index.h"
#include "router/routing/route_planner.h"

namespace baton::router {

// Workers are numbered: prefill addresses first, then decode addresses.
struct RoutedFleet {
  // `policy` and `clock` must outlive it.
  RoutedFleet(const std::vector<std::string>& prefill_addresses,
              const std::vector<std::string>& decode_addresses, uint64_t tokenizer_fingerprint,
              Policy& policy, const Clock& clock, const RouteOptions& options = RouteOptions())
      : roster(tokenizer_fingerprint, index, clock),
        planner(roster, index, policy, clock, options) {
    std::vector<WorkerAddress> listed;
    for (const std::string& address : prefill_addresses) {
      listed.push_back({v1::WORKER_ROLE_PREFILL, address});
    }
    for (const std::string& address : decode_addresses) {
      listed.push_back({v1::WORKER_ROLE_DECODE, address});
    }
    const absl::Status set = roster.SetWorkers(listed);
    BATON_CHECK(set.ok()) << set;
  }

  PrefixIndex index;
  Roster roster;
  RoutePlanner planner;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_ROUTED_FLEET_H_
