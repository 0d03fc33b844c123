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
  // Of all gaps, those after first tokens included.
  double p50_gap_s = 0, p99_gap_s = 0;
  // Gaps longer than Scenario::slo_gap_s: those of a step, of the way of a prompt's KV with the
  // step after it, and of a sequence that lost its blocks.
  int64_t late_steps = 0, late_first_gaps = 0, late_preempted = 0;
  // Means over the workers and the time until the last arrival.
  double slots_used = 0, kv_used = 0;
  double mean_wait_s = 0;   // in a decode worker's queue
  double tokens_per_s = 0;  // from the first arrival to the last token
  // Of the sequences on each worker, sampled every 50 ms until the last arrival. imbalance: the
  // mean of max ÷ mean over the samples whose mean is 1 or more. idle_beside_loaded_share: the
  // share of all samples in which a worker is idle while another has at least 2 more than the mean.
  double imbalance = 0, idle_beside_loaded_share = 0;
  int64_t preemptions = 0;
  std::vector<int> snapshot;  // sequences by worker at DecodeTier::snapshot_s
};

class DecodeMeter {
 public:
  explicit DecodeMeter(double slo_gap_s) : slo_gap_us_(slo_gap_s * 1e6) {}

  void Waited(int64_t us) { waits_.Add(us); }
  // Between a request's first two tokens.
  void FirstGap(int64_t us) {
    first_gaps_.Add(us);
    all_gaps_.Add(us);
    ++tokens_;
    late_first_gaps_ += Late(us);
  }
  // `tokens` further tokens arrived, each `us` after the previous one.
  void Gaps(int64_t us, int64_t tokens) {
    AddGaps(us, tokens);
    if (Late(us)) late_steps_ += tokens;
  }
  // A further token arrived, `us` after the previous one, of a sequence that was preempted or lost
  // in between.
  void GapOfPreempted(int64_t us) {
    AddGaps(us, 1);
    late_preempted_ += Late(us);
  }
  // A request ended: it had `tokens` tokens, and the last arrived `us` after the second.
  void Ended(int tokens, int64_t us) {
    ++tokens_;  // the first
    if (tokens > 2) request_gaps_.Add(us / (tokens - 2));
  }
  // Call every 50 ms.
  void Sample(const std::vector<SimDecodeWorker>& workers);

  DecodeFigures Figures(const std::vector<SimDecodeWorker>& workers, int64_t passed_us) const;

 private:
  bool Late(int64_t us) const { return static_cast<double>(us) > slo_gap_us_; }
  void AddGaps(int64_t us, int64_t tokens) {
    gaps_.Add(us, tokens);
    all_gaps_.Add(us, tokens);
    tokens_ += tokens;
  }

  const double slo_gap_us_;
  LogHistogram gaps_, first_gaps_, all_gaps_, request_gaps_, waits_;
  int64_t late_steps_ = 0, late_first_gaps_ = 0, late_preempted_ = 0;
  double slots_used_ = 0, kv_used_ = 0;
  int64_t tokens_ = 0;
  int64_t samples_ = 0, idle_samples_ = 0;
  int64_t loaded_samples_ = 0;  // with a mean of 1 or more
  double imbalance_ = 0;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_DECODE_METER_H_
