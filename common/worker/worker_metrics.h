// What both workers measure. Call a method when its event happens; the metrics are declared in the
// .cc file.
#ifndef BATON_COMMON_WORKER_WORKER_METRICS_H_
#define BATON_COMMON_WORKER_WORKER_METRICS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/telemetry/metric_set.h"
#include "common/telemetry/trace_counters.h"
#include "common/transfer/plane.h"
#include "common/worker/watch_service.h"

namespace baton::worker {

enum class KvDirection { kSent, kReceived };

// Labels of baton_cache_config_info.
struct CacheConfig {
  int block_tokens = 0;
  int block_count = 0;
  std::string dtype;  // of the KV
};

// Thread-safe, the constructor and metrics() excepted.
class WorkerMetrics {
 public:
  // role: "prefill" or "decode", a label of every series. transfer_failures: the reasons that
  // KvTransferFailed may get. The registry must outlive it.
  WorkerMetrics(prometheus::Registry& registry, const std::string& role, const std::string& model,
                const CacheConfig& cache, const std::vector<std::string>& transfer_failures);
  ~WorkerMetrics();

  void SetLoad(const WorkerLoad& load);
  // From submission to the start of work. priority: "low", "normal" or "high".
  void Queued(absl::Duration duration, const char* priority);
  void Refused(const std::string& reason);
  void KvBytes(KvDirection direction, int64_t bytes, transfer::Plane plane);
  // All KV of a transfer has left, or has come; `duration` as baton_kv_transfer_duration_seconds. A
  // decode worker's series of durations has only what it received.
  void KvTransferred(KvDirection direction, absl::Duration duration, int64_t bytes,
                     transfer::Plane plane);
  void KvTransferFailed(const char* reason);
  // Tokens of a request that were looked up in the prefix cache, and those found there.
  void PrefixCache(int64_t tokens, int64_t cached_tokens);
  void BlocksEvicted(int count);
  const telemetry::TraceCounters& traces() const;

  // To declare the metrics of one role.
  telemetry::MetricSet& metrics();

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_WORKER_METRICS_H_
