// What both workers measure. Call a method when its event happens; names and labels of the metrics
// are in the .cc file.
#ifndef BATON_COMMON_WORKER_WORKER_METRICS_H_
#define BATON_COMMON_WORKER_WORKER_METRICS_H_

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/worker/watch_service.h"

namespace prometheus {
class Registry;
}

namespace baton::worker {

// Thread-safe. The registry must outlive it.
class WorkerMetrics {
 public:
  // role: "prefill" or "decode", a label of every series.
  WorkerMetrics(prometheus::Registry& registry, const std::string& role, const std::string& model);
  ~WorkerMetrics();

  void SetLoad(const WorkerLoad& load);
  void Queued(absl::Duration duration);  // from submission to the start of work
  void Refused(const std::string& reason);
  void KvBytes(int64_t bytes, const char* direction);  // "sent" or "received"
  void KvTransferFailed(const char* reason);

 private:
  struct Series;
  std::unique_ptr<Series> series_;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_WORKER_METRICS_H_
