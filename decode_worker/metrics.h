// What the decode worker measures. Methods are events; names live in the .cc file.
#ifndef BATON_DECODE_WORKER_METRICS_H_
#define BATON_DECODE_WORKER_METRICS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/transfer/kv_receiver.h"
#include "common/worker/worker_metrics.h"

namespace baton::decode_worker {

// Thread-safe.
class DecodeMetrics {
 public:
  DecodeMetrics(prometheus::Registry& registry, const std::string& model);
  ~DecodeMetrics();

  void Refused(const std::string& reason) { worker_.Refused(reason); }
  void Admitted(absl::Duration queued) { worker_.Queued(queued); }
  void TransferCommitted(absl::Duration duration, int64_t kv_bytes);
  void TransferFailed(transfer::AbortReason reason) { worker_.KvTransferFailed(Name(reason)); }
  void Stepped(absl::Duration duration, int sequences);
  // Answer tokens were drawn on this worker.
  void Generated(int64_t tokens);
  void Ended(absl::StatusCode code);
  // A request was admitted for the first time: its tokens, and how many of them the prefix cache
  // had.
  void PrefixCache(int64_t tokens, int64_t cached_tokens);
  void BlocksEvicted(int count);
  void Preempted(int64_t count);
  // KV of preempted sequences was copied to host memory, and back.
  void SwappedOut(int64_t bytes);
  void SwappedIn(int64_t bytes);
  void PrefilledHere(int64_t tokens);
  void SetLoad(const worker::WorkerLoad& load);

 private:
  struct Series;
  worker::WorkerMetrics worker_;
  std::unique_ptr<Series> series_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_METRICS_H_
