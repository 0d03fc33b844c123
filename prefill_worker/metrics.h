// What the prefill worker measures. Methods are events; names live in the .cc file.
#ifndef BATON_PREFILL_WORKER_METRICS_H_
#define BATON_PREFILL_WORKER_METRICS_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/worker/worker_metrics.h"

namespace baton::prefill_worker {

// Thread-safe.
class PrefillMetrics {
 public:
  PrefillMetrics(prometheus::Registry& registry, const std::string& model);
  ~PrefillMetrics();

  void Refused(const std::string& reason) { worker_.Refused(reason); }
  void Started(absl::Duration queued, int prompt_tokens, int cached_tokens);
  void Computed(absl::Duration duration);
  void BlocksEvicted(int count);
  void BytesSent(int64_t bytes) { worker_.KvBytes(bytes, "sent"); }
  void SetLoad(const worker::WorkerLoad& load) { worker_.SetLoad(load); }

 private:
  struct Series;
  worker::WorkerMetrics worker_;
  std::unique_ptr<Series> series_;
};

}  // namespace baton::prefill_worker

#endif  // BATON_PREFILL_WORKER_METRICS_H_
