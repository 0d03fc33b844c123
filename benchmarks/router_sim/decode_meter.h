// Measures what clients and operators see of a simulated decode tier.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_DECODE_METER_H_
#define BATON_BENCHMARKS_ROUTER_SIM_DECODE_METER_H_

#include <cstdint>
#include <vector>

#include "benchmarks/router_sim/log_histogram.h"
#include "benchmarks/router_sim/sim_decode_worker.h"

namespace baton::benchmarks {

struct DecodeFigures {
  // Between two tokens of a request, all tokens alike, but for the gap behind its first one.
  double mean_itl_s = 0, p99_itl_s = 0;
  double p99_request_itl_s = 0;  // of the means of requests with 3 tokens or more
  double mean_first_gap_s = 0;   // between the first token and the second
  double mean_wait_s = 0;        // in a decode worker's queue
  double tokens_per_s = 0;       // from the first arrival to the last token
  // Of sequences by worker, each 50 ms until the last arrival: the mean of max ÷ mean, where the
  // mean is 1 or more; and the share of times at which a worker is idle while another has 2 more
  // than the mean, or further above it.
  double imbalance = 0, idle_share = 0;
  int64_t preemptions = 0;
  std::vector<int> snapshot;  // sequences by worker at DecodeTier::snapshot_s
};

class DecodeMeter {
 public:
  void Waited(int64_t us) { waits_.Add(us); }
  // Between a request's first two tokens.
  void FirstGap(int64_t us) { first_gaps_.Add(us), ++tokens_; }
  // So many tokens, each so long after the one before it.
  void Gaps(int64_t us, int64_t tokens) { gaps_.Add(us, tokens), tokens_ += tokens; }
  // A request of so many tokens has its last, so long after its second one.
  void Ended(int tokens, int64_t us) {
    ++tokens_;  // the first
    if (tokens > 2) request_gaps_.Add(us / (tokens - 2));
  }
  // To be called at regular times.
  void Sample(const std::vector<SimDecodeWorker>& workers);

  DecodeFigures Figures(const std::vector<SimDecodeWorker>& workers, int64_t passed_us) const;

 private:
  LogHistogram gaps_, first_gaps_, request_gaps_, waits_;
  int64_t tokens_ = 0;
  int64_t samples_ = 0, idle_samples_ = 0, loaded_samples_ = 0;
  double imbalance_ = 0;
};

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_ROUTER_SIM_DECODE_METER_H_
