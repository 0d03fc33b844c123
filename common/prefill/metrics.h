// What is measured of jobs. Methods are events; the metrics are declared in the .cc file.
#ifndef BATON_COMMON_PREFILL_METRICS_H_
#define BATON_COMMON_PREFILL_METRICS_H_

#include <prometheus/counter.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/prefill/job.h"
#include "common/prefill/tier_metrics.h"
#include "common/transfer/kv_receiver.h"
#include "common/worker/kv_exchange_metrics.h"
#include "common/worker/worker_metrics.h"

namespace baton::prefill {

// The jobs of either worker. Thread-safe.
class JobMetrics {
 public:
  // `worker` must outlive it.
  explicit JobMetrics(worker::WorkerMetrics& worker);

  void Refused(const std::string& reason) { worker_.Refused(reason); }
  // A job has got its blocks.
  void Started(const PrefillJob& job);
  // `computing`: the time of the steps that had a chunk of the prompt, together.
  void Computed(absl::Duration computing);
  // The loop's time from one step's end to the next one's begin, as there was work.
  void StepGap(absl::Duration gap) { step_gap_.Observe(absl::ToDoubleSeconds(gap)); }
  // An item of a ScoreItems call.
  void Scored() { scored_items_.Increment(); }
  void BytesSent(int64_t bytes, transfer::Plane plane) {
    worker_.KvBytes(worker::KvDirection::kSent, bytes, plane);
  }
  // All KV of a computed prompt has left, `after` its computation.
  void Sent(absl::Duration after, int64_t bytes, transfer::Plane plane) {
    worker_.KvTransferred(worker::KvDirection::kSent, after, bytes, plane);
  }
  // A job that had started ended before its prompt was computed.
  void TransferFailed(transfer::AbortReason reason) { worker_.KvTransferFailed(Name(reason)); }
  TierMetrics& tiers() { return tiers_; }

 private:
  worker::WorkerMetrics& worker_;
  prometheus::Histogram& duration_;
  prometheus::Histogram& step_gap_;
  prometheus::Counter& scored_items_;
  TierMetrics tiers_;
};

// All that a prefill worker measures. Thread-safe.
class PrefillMetrics {
 public:
  PrefillMetrics(prometheus::Registry& registry, const std::string& model,
                 const worker::CacheConfig& cache = {});

  void SetLoad(const worker::WorkerLoad& load) { worker_.SetLoad(load); }
  worker::WorkerMetrics& worker() { return worker_; }
  worker::KvExchangeMetrics& kv_exchange() { return kv_exchange_; }
  JobMetrics& jobs() { return jobs_; }
  const telemetry::TraceCounters& traces() const { return worker_.traces(); }
  std::vector<telemetry::MetricDescription> descriptions() {
    return worker_.metrics().descriptions();
  }

 private:
  worker::WorkerMetrics worker_;
  worker::KvExchangeMetrics kv_exchange_;
  JobMetrics jobs_;
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_METRICS_H_
