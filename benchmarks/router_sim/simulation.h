// One cell: a load, some routers, some workers, and what can happen to them, from the first arrival
// to the last answer. Equal arguments give equal results, but for ns_per_decision.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_SIMULATION_H_
#define BATON_BENCHMARKS_ROUTER_SIM_SIMULATION_H_

#include <cstdint>
#include <vector>

#include "benchmarks/router_sim/sim_router.h"
#include "benchmarks/router_sim/trace.h"

namespace baton::benchmarks {

struct Outage {
  int worker = 0;
  double down_s = 0, up_s = 0;  // from `down_s` on it is not there; at `up_s` a new process is
};

struct Scenario {
  double speed = 1;  // of replay
  int routers = 1;
  int workers = 8;
  int cache_blocks = 4096;  // a worker
  PrefillCost cost;
  int64_t event_delay_us = 20'000;   // from a worker to the routers, whatever it tells
  int64_t report_every_us = 50'000;  // of load
  double slo_s = 10;                 // of TTFT, for goodput
  std::vector<Outage> outages;
  uint64_t seed = 1;  // which router a request comes to, and ties
};

struct CellResult {
  double mean_ttft_s = 0, p50_ttft_s = 0, p99_ttft_s = 0;
  double hit_rate = 0;         // of prompt tokens
  double goodput = 0;          // part of the requests answered within the SLO
  double busy_variation = 0;   // of the workers' busy times: standard deviation / mean
  int64_t index_bytes = 0;     // of one router, at the last arrival
  double ns_per_decision = 0;  // wall time: the only value that is not simulated
  int64_t retries = 0;
  int64_t unanswered = 0;  // whom no worker took for kPatience
};

// Every router is made by `make_router`.
CellResult Simulate(const Trace& trace, const Scenario& scenario, const MakeRouter& make_router);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_ROUTER_SIM_SIMULATION_H_
