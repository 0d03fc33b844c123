// The bound on requests that a worker has accepted and not yet scheduled: those posted to the loop
// and those in its queue. gRPC threads ask it before they post a request, so a full queue refuses
// at once, also while a step computes, and the mailbox is bounded too.
#ifndef BATON_COMMON_WORKER_SUBMISSION_LIMIT_H_
#define BATON_COMMON_WORKER_SUBMISSION_LIMIT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace baton::worker {

// Thread-safe.
class SubmissionLimit {
 public:
  struct Load {
    int requests = 0;
    int64_t tokens = 0;
  };
  // `worker`: "prefill" or "decode", for messages. `bounds` apply to the loop's queue and the
  // posted requests together.
  SubmissionLimit(std::string worker, const Load& bounds)
      : worker_(std::move(worker)), bounds_(bounds) {}

  // Call from any thread, before a request of `tokens` tokens is posted to the loop. Returns
  // UNAVAILABLE (DRAINING), or RESOURCE_EXHAUSTED (QUEUE_FULL) with the time to retry after. An
  // empty queue accepts a request of any length. For a `continuation` the bounds are doubled, so
  // that requests of a lost worker are not refused because new requests wait here.
  absl::Status Reserve(int64_t tokens, bool continuation = false);
  // While draining, every request is refused.
  void SetDraining(bool draining);

  // Call from the loop when it has queued or answered a posted request, which counts as posted
  // until the next Update.
  void OnQueued(int64_t tokens);
  // Call from the loop, between messages and steps, with its present queue and how fast the queue
  // moves, if known.
  void Update(const Load& queue, std::optional<double> tokens_per_second);

 private:
  const std::string worker_;
  const Load bounds_;
  absl::Mutex mutex_;
  Load posted_ ABSL_GUARDED_BY(mutex_);
  Load handled_
      ABSL_GUARDED_BY(mutex_);  // posted requests that the loop has handled since the last Update
  Load queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<double> tokens_per_second_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_SUBMISSION_LIMIT_H_
