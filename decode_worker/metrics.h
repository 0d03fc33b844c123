// What the decode worker measures. Methods are events; the metrics are declared in the .cc file.
#ifndef BATON_DECODE_WORKER_METRICS_H_
#define BATON_DECODE_WORKER_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/prefill/metrics.h"
#include "common/transfer/kv_receiver.h"
#include "common/transfer/shared_pools.h"
#include "common/worker/kv_exchange_metrics.h"
#include "common/worker/worker_metrics.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

// Thread-safe.
class DecodeMetrics {
 public:
  DecodeMetrics(prometheus::Registry& registry, const std::string& model,
                const worker::CacheConfig& cache = {});
  ~DecodeMetrics();

  void Refused(const std::string& reason) { worker_.Refused(reason); }
  void Admitted(absl::Duration queued, Priority priority);
  void TransferStarted(transfer::PlaneReason plane);
  // `after` the first token's arrival.
  void TransferCommitted(absl::Duration after, const transfer::TransferSummary& summary);
  void TransferFailed(transfer::AbortReason reason) { worker_.KvTransferFailed(Name(reason)); }
  void Stepped(absl::Duration duration, int sequences);
  // Answer tokens were drawn on this worker.
  void Generated(int64_t tokens);
  // A step drafted `drafted` tokens for `steps` sequences, and drew `accepted` of them.
  void Drafted(int64_t steps, int64_t drafted, int64_t accepted);
  // A draft model took so long between two steps.
  void Drafting(absl::Duration took);
  void Ended(absl::StatusCode code);
  // A request was admitted for the first time: its tokens, and how many of them the prefix cache
  // had.
  void PrefixCache(int64_t tokens, int64_t cached_tokens) {
    worker_.PrefixCache(tokens, cached_tokens);
  }
  // `swapped`: the KV was copied to host memory.
  void Preempted(bool swapped, int64_t count);
  // KV of preempted sequences was copied to host memory, and back.
  void SwappedOut(int64_t bytes);
  void SwappedIn(int64_t bytes);
  // KV that some worker had computed before is computed again.
  enum class Recompute { kPreemption, kTransferFailed, kFailover };
  void Recomputed(Recompute reason);
  void PrefilledHere(int64_t tokens);
  void SetLoad(const worker::WorkerLoad& load);
  // Sets the rates of all links that are reported.
  void SetLinks(std::vector<double> bytes_per_second);
  worker::WorkerMetrics& worker() { return worker_; }
  worker::KvExchangeMetrics& kv_exchange() { return kv_exchange_; }
  prefill::JobMetrics& jobs() { return jobs_; }
  const telemetry::TraceCounters& traces() const { return worker_.traces(); }
  std::vector<telemetry::MetricDescription> descriptions() {
    return worker_.metrics().descriptions();
  }

 private:
  struct Series;
  worker::WorkerMetrics worker_;
  std::unique_ptr<Series> series_;
  worker::KvExchangeMetrics kv_exchange_;
  prefill::JobMetrics jobs_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_METRICS_H_
