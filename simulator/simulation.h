// One cell: a load, some routers, some workers, and what can happen to them, from the first arrival
// to the last answer. Equal arguments give equal results, but for ns_per_decision.
#ifndef BATON_SIMULATOR_SIMULATION_H_
#define BATON_SIMULATOR_SIMULATION_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "simulator/decode_meter.h"
#include "simulator/sim_decode_worker.h"
#include "simulator/sim_router.h"
#include "simulator/trace.h"

namespace baton::simulator {

inline constexpr int64_t kRetryAfterUs = 100'000;    // where no worker could be named
inline constexpr int64_t kPatienceUs = 120'000'000;  // then the request is given up
inline constexpr int64_t kConnectFailsUs = 1000;     // to find that no process is at an address

struct Outage {
  int worker = 0;
  double down_s = 0, up_s = 0;  // from `down_s` on it is not there; at `up_s` a new process is
};

// A worker's steps take `factor` times as long for a while.
struct Slowdown {
  int worker = 0;
  double from_s = 0, to_s = 0;
  double factor = 1;
};

// Each time that the worker starts, its first steps take so long each.
struct ColdStart {
  int worker = 0;
  int steps = 1;
  double step_s = 1;
};

// Workers are numbered from 0 within their tier.
struct DecodeTier {
  int workers = 0;  // 0: this tier is not simulated
  DecodeWorkerShape shape;
  // Every second worker is of this shape instead.
  std::optional<DecodeWorkerShape> other_shape;
  // KV on its way to a worker: this, and its bytes at that rate.
  int64_t transfer_latency_us = 2000;
  double bytes_per_second = 2.5e9;
  // Instead of that rate, by prefill and decode worker; empty: that rate. Such a link has one
  // transfer at a time. A prompt's layers cross while it is computed, the last one afterwards. The
  // decode worker measures the link and reports it.
  std::vector<std::vector<double>> links;
  // What a prompt takes where no prefill workers are simulated, and, wherever, to compute again
  // what a sequence had that was preempted or lost.
  PrefillCost ample_prefill = {2000, 20, 0.0006};
  std::vector<Slowdown> slow;
  std::vector<ColdStart> cold;
  std::vector<Outage> outages;
  // Steps that a worker has measured before the first request.
  std::vector<std::pair<int, MeasuredSteps>> past;
  double snapshot_s = -1;  // after the first arrival: for DecodeFigures::snapshot
};

struct Scenario {
  double speed = 1;  // of replay
  int routers = 1;
  int workers = 8;  // prefill; 0 (with decode workers only): that tier is not simulated
  DecodeTier decode;
  int cache_blocks = 4096;  // a worker
  PrefillCost cost;
  // How prefill workers batch prompts: PrefillWorkerShape.
  int prefill_step_tokens = 0;
  int prefill_most_jobs = 64;
  // Of a token's KV, and of the layers of which a prompt's last one crosses the link alone.
  double kv_bytes_per_token = kKvBytesPerToken;
  int kv_layers = kKvLayers;
  int64_t event_delay_us = 20'000;   // from a worker to the routers, whatever it tells
  int64_t report_every_us = 50'000;  // of load
  double slo_s = 10;                 // of TTFT, for goodput
  // Of the gaps between an answer's tokens; only where decode workers are simulated.
  double slo_gap_s = std::numeric_limits<double>::infinity();
  // Prefill workers fetch what a router says others have, at that rate for each fetch, if that is
  // sooner done than computing. 0: never. Not with decode workers.
  double fetch_bytes_per_second = 0;
  std::vector<Outage> outages;
  uint64_t seed = 1;  // which router a request comes to, and ties
};

// What the requests whose first token came later than slo_s waited for, in seconds of all of them
// together.
struct LateFirstTokens {
  int64_t requests = 0;
  double slot_s = 0;       // a decode worker ran as many sequences as it may
  double kv_s = 0;         // a decode worker had too few free KV blocks
  double prefill_s = 0;    // a prefill worker computed other prompts
  double computing_s = 0;  // since the prompt's first chunk was begun
};

struct CellResult {
  DecodeFigures decode;  // where decode workers are simulated
  double mean_ttft_s = 0, p50_ttft_s = 0, p99_ttft_s = 0;
  // Where decode workers are simulated: to the second token, which waits for the KV, and to the
  // last one.
  double p50_second_s = 0, p99_second_s = 0, mean_answer_s = 0;
  double hit_rate = 0;  // of prompt tokens; what was fetched counts
  int64_t fetched_tokens = 0, computed_tokens = 0;
  // Part of the requests whose first token came within slo_s and, where decode workers are
  // simulated, whose mean gap between tokens is at most slo_gap_s.
  double goodput = 0;
  double prefill_busy = 0;     // mean share of the time, from the first arrival to the last answer
  LateFirstTokens late;        // where decode workers are simulated
  double busy_variation = 0;   // of the workers' busy times: standard deviation / mean
  int64_t index_bytes = 0;     // of one router, at the last arrival
  double ns_per_decision = 0;  // wall time: the only value that is not simulated
  int64_t retries = 0;
  int64_t unanswered = 0;  // requests that no worker took for kPatienceUs
};

// The prefill workers of a scenario, which report as many blocks for one of the trace.
PrefillWorkerShape PrefillShapeOf(const Scenario& scenario, int reported_blocks);

// Every router is made by `make_router`. REQUIRES: a tier has workers.
CellResult Simulate(const Trace& trace, const Scenario& scenario, const MakeRouter& make_router);

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_SIMULATION_H_
