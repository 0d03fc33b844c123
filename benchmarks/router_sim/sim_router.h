// What the simulation asks of a router, Baton's or a peer's: it hears what workers tell, late, and
// names a worker for each request.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_SIM_ROUTER_H_
#define BATON_BENCHMARKS_ROUTER_SIM_SIM_ROUTER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "baton/internal/v1/worker.pb.h"
#include "benchmarks/router_sim/sim_worker.h"
#include "benchmarks/router_sim/trace.h"

namespace baton::benchmarks {

// What every router of a run is told at its start.
struct RouterSetup {
  const Trace* trace = nullptr;
  int workers = 0;
  int cache_blocks = 0;
  PrefillCost cost;
  int64_t event_delay_us = 0;
  uint64_t seed = 0;
};

// Time is an argument and never goes back.
class SimRouter {
 public:
  virtual ~SimRouter() = default;

  virtual void OnStreamStarted(int worker, int64_t now_us) = 0;
  virtual void OnStreamLost(int worker, int64_t now_us) = 0;
  virtual void OnEvent(int worker, const internal::v1::WatchResponse& event, int64_t now_us) = 0;

  // A worker for the request (an index into the trace), counted as dispatched there; -1 if none may
  // take it now. `avoid` has just failed it (-1: none has).
  virtual int Choose(int request, int avoid, int64_t now_us) = 0;
  // The first token of a dispatched request has come through this router.
  virtual void OnAnswer(int request, int worker, int64_t now_us) = 0;
  // The worker of a dispatched request is gone.
  virtual void OnLoss(int request, int worker, int64_t now_us) = 0;

  // What it keeps to know prefixes by.
  virtual int64_t IndexBytes() const = 0;
};

using MakeRouter = std::function<std::unique_ptr<SimRouter>(const RouterSetup&)>;

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_ROUTER_SIM_SIM_ROUTER_H_
