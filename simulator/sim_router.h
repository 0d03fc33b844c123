// What the simulation asks of a router, Baton's or a peer's: it hears what workers tell, late, and
// names a worker for each request.
#ifndef BATON_SIMULATOR_SIM_ROUTER_H_
#define BATON_SIMULATOR_SIM_ROUTER_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "baton/internal/v1/worker.pb.h"
#include "simulator/sim_worker.h"
#include "simulator/trace.h"

namespace baton::simulator {

// What every router of a run knows at its start. Workers are numbered, those of the prefill tier
// first. A tier without workers is not simulated: it takes everything at once.
struct RouterSetup {
  const Trace* trace = nullptr;
  int workers = 0;  // prefill
  int cache_blocks = 0;
  PrefillCost cost;
  int64_t event_delay_us = 0;
  uint64_t seed = 0;
  int decode_workers = 0;
  int decode_cache_blocks = 0;
  int reported_blocks = 1;  // that workers tell for a block of the trace
  double fetch_bytes_per_second = 0;
  double kv_bytes_per_token = kKvBytesPerToken;
};

// -1: of a tier that is not simulated, or none.
struct SimRoute {
  int prefill = -1;
  int decode = -1;
  int holder = -1;  // the prefill worker that is named as having more of the prompt cached

  bool found() const { return prefill >= 0 || decode >= 0; }
};

// What a request was to those who served it.
struct SimAnswer {
  int64_t generated_tokens = 0;
  int64_t moved_tokens = 0;  // whose KV went from a prefill to a decode worker
  int64_t moved_us = 0;      // how long that took
};

// Time is an argument and never goes back.
class SimRouter {
 public:
  virtual ~SimRouter() = default;

  virtual void OnStreamStarted(int worker, int64_t now_us) = 0;
  virtual void OnStreamLost(int worker, int64_t now_us) = 0;
  virtual void OnEvent(int worker, const internal::v1::WatchResponse& event, int64_t now_us) = 0;

  // A worker of each simulated tier for the request (an index into the trace), counted as
  // dispatched there; not found() if none may take it now. `avoid` has just failed it (-1: none
  // has).
  virtual SimRoute Choose(int request, int avoid, int64_t now_us) = 0;
  // The first token of a dispatched request has come through this router.
  virtual void OnAnswer(int request, const SimRoute& route, int64_t now_us) = 0;
  // The whole answer has. Only where decode workers are simulated.
  virtual void OnEnd(int request, const SimRoute& route, const SimAnswer& answer,
                     int64_t now_us) = 0;
  // A worker of a dispatched request is gone.
  virtual void OnLoss(int request, const SimRoute& route, int64_t now_us) = 0;

  // What it keeps to know prefixes by.
  virtual int64_t IndexBytes() const = 0;
};

using MakeRouter = std::function<std::unique_ptr<SimRouter>(const RouterSetup&)>;

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_SIM_ROUTER_H_
