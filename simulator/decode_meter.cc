#include "simulator/decode_meter.h"

#include <algorithm>

namespace baton::simulator {

void DecodeMeter::Sample(const std::vector<SimDecodeWorker>& workers) {
  int most = 0, alive = 0, sum = 0;
  bool idle = false;
  double slots = 0, kv = 0;
  for (const SimDecodeWorker& worker : workers) {
    if (!worker.alive()) continue;
    ++alive;
    sum += worker.sequences();
    most = std::max(most, worker.sequences());
    idle = idle || worker.sequences() == 0;
    slots +=
        static_cast<double>(worker.sequences() - worker.queued()) / worker.shape().max_num_seqs;
    kv += static_cast<double>(worker.active_blocks()) / worker.shape().kv_blocks;
  }
  if (alive == 0) return;
  slots_used_ += slots / alive;
  kv_used_ += kv / alive;
  const double mean = static_cast<double>(sum) / alive;
  ++samples_;
  idle_samples_ += idle && most >= mean + 2;
  if (mean < 1) return;
  imbalance_ += most / mean;
  ++loaded_samples_;
}

DecodeFigures DecodeMeter::Figures(const std::vector<SimDecodeWorker>& workers,
                                   int64_t passed_us) const {
  DecodeFigures figures;
  figures.mean_itl_s = gaps_.mean_s();
  figures.p99_itl_s = gaps_.Quantile_s(0.99);
  figures.p99_request_itl_s = request_gaps_.Quantile_s(0.99);
  figures.mean_first_gap_s = first_gaps_.mean_s();
  figures.mean_wait_s = waits_.mean_s();
  if (passed_us > 0) {
    figures.tokens_per_s = static_cast<double>(tokens_) * 1e6 / static_cast<double>(passed_us);
  }
  if (loaded_samples_ > 0) figures.imbalance = imbalance_ / static_cast<double>(loaded_samples_);
  figures.p50_gap_s = all_gaps_.Quantile_s(0.5);
  figures.p99_gap_s = all_gaps_.Quantile_s(0.99);
  figures.late_steps = late_steps_;
  figures.late_first_gaps = late_first_gaps_;
  figures.late_preempted = late_preempted_;
  if (samples_ > 0) {
    figures.slots_used = slots_used_ / static_cast<double>(samples_);
    figures.kv_used = kv_used_ / static_cast<double>(samples_);
    figures.idle_beside_loaded_share =
        static_cast<double>(idle_samples_) / static_cast<double>(samples_);
  }
  for (const SimDecodeWorker& worker : workers) figures.preemptions += worker.preemptions();
  return figures;
}

}  // namespace baton::simulator
