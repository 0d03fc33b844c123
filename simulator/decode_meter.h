// Measures what clients and operators see of a simulated decode tier.
#ifndef BATON_SIMULATOR_DECODE_METER_H_
#define BATON_SIMULATOR_DECODE_METER_H_

#include <cstdint>
#include <vector>

#include "simulator/log_histogram.h"
#include "simulator/sim_decode_worker.h"

namespace baton::simulator {

struct DecodeFigures {
  // Gaps between consecutive tokens of a request, all weighted equally, without the gap after its
  // first token.
  double mean_itl_s = 0, p99_itl_s = 0;
  double p99_request_itl_s = 0;  // of the means of requests with 3 tokens or more
  double mean_first_gap_s = 0;   // between the first token and the second
  double mean_wait_s = 0;        // in a decode worker's queue
  double tokens_per_s = 0;       // from the first arrival to the last token
  // Of the sequences on each worker, sampled every 50 ms until the last arrival. imbalance: the
  // mean of max ÷ mean over the samples whose mean is 1 or more. idle_beside_loaded_share: the
  // share of all samples in which a worker is idle while another has at least 2 more than the mean.
  double imbalance = 0, idle_beside_loaded_share = 0;
  int64_t preemptions = 0;
  std::vector<int> snapshot;  // sequences by worker at DecodeTier::snapshot_s
};

class DecodeMeter {
 public:
  void Waited(int64_t us) { waits_.Add(us); }
  // Between a request's first two tokens.
  void FirstGap(int64_t us) { first_gaps_.Add(us), ++tokens_; }
  // `tokens` further tokens arrived, each `us` after the previous one.
  void Gaps(int64_t us, int64_t tokens) { gaps_.Add(us, tokens), tokens_ += tokens; }
  // A request ended: it had `tokens` tokens, and the last arrived `us` after the second.
  void Ended(int tokens, int64_t us) {
    ++tokens_;  // the first
    if (tokens > 2) request_gaps_.Add(us / (tokens - 2));
  }
  // Call every 50 ms.
  void Sample(const std::vector<SimDecodeWorker>& workers);

  DecodeFigures Figures(const std::vector<SimDecodeWorker>& workers, int64_t passed_us) const;

 private:
  LogHistogram gaps_, first_gaps_, request_gaps_, waits_;
  int64_t tokens_ = 0;
  int64_t samples_ = 0, idle_samples_ = 0;
  int64_t loaded_samples_ = 0;  // with a mean of 1 or more
  double imbalance_ = 0;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_DECODE_METER_H_
