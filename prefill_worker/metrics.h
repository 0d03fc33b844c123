// What the prefill worker measures. Methods are events; the metrics are declared in the .cc file.
#ifndef BATON_PREFILL_WORKER_METRICS_H_
#define BATON_PREFILL_WORKER_METRICS_H_

#include <prometheus/counter.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/transfer/kv_receiver.h"
#include "common/worker/kv_exchange_metrics.h"
#include "common/worker/worker_metrics.h"
#include "prefill_worker/job.h"
#include "prefill_worker/tier_metrics.h"

namespace baton::prefill_worker {

// Thread-safe.
class PrefillMetrics {
 public:
  PrefillMetrics(prometheus::Registry& registry, const std::string& model,
                 const worker::CacheConfig& cache = {});

  void Refused(const std::string& reason) { worker_.Refused(reason); }
  // A job has got its blocks.
  void Started(const PrefillJob& job);
  // `computing`: the steps that the prompt was part of, together.
  void Computed(absl::Duration computing);
  // The loop's time from one step's end to the next one's begin, as there was work.
  void StepGap(absl::Duration gap) { step_gap_.Observe(absl::ToDoubleSeconds(gap)); }
  // An item of a ScoreItems call.
  void Scored() { scored_items_.Increment(); }
  void BytesSent(int64_t bytes, transfer::Plane plane) { worker_.KvBytes(bytes, plane); }
  // All KV of a computed prompt has left, `after` its computation.
  void Sent(absl::Duration after, int64_t bytes, transfer::Plane plane) {
    worker_.KvTransferred(after, bytes, plane);
  }
  // A job that had started ended before its prompt was computed.
  void TransferFailed(transfer::AbortReason reason) { worker_.KvTransferFailed(Name(reason)); }
  void SetLoad(const worker::WorkerLoad& load) { worker_.SetLoad(load); }
  worker::WorkerMetrics& worker() { return worker_; }
  worker::KvExchangeMetrics& kv_exchange() { return kv_exchange_; }
  TierMetrics& tiers() { return tiers_; }
  const telemetry::TraceCounters& traces() const { return worker_.traces(); }
  std::vector<telemetry::MetricDescription> descriptions() {
    return worker_.metrics().descriptions();
  }

 private:
  worker::WorkerMetrics worker_;
  prometheus::Histogram& duration_;
  prometheus::Histogram& step_gap_;
  prometheus::Counter& scored_items_;
  worker::KvExchangeMetrics kv_exchange_;
  TierMetrics tiers_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_METRICS_H_
