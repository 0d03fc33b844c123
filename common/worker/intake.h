// What stands between the threads that receive requests and the loop that judges them: it refuses
// at once what the loop's queue has no room for, so that requests that come while a step computes
// are as bounded as those that wait, and nobody waits for the end of a step to hear a refusal.
#ifndef BATON_COMMON_WORKER_INTAKE_H_
#define BATON_COMMON_WORKER_INTAKE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace baton::worker {

// Thread-safe.
class Intake {
 public:
  struct Load {
    int requests = 0;
    int64_t tokens = 0;
  };
  // `worker`: "prefill" or "decode", for messages. `bounds` are on the loop's queue and on what is
  // posted to the loop, together.
  Intake(std::string worker, const Load& bounds) : worker_(std::move(worker)), bounds_(bounds) {}

  // From any thread, before a request of that many tokens is posted to the loop: UNAVAILABLE
  // (DRAINING), or RESOURCE_EXHAUSTED (QUEUE_FULL), saying when to come again. A lone request may
  // enter however long it is. For a `continuation` there is as much room again as `bounds`: what a
  // lost worker had running is not refused because new requests wait here.
  absl::Status Enter(int64_t tokens, bool continuation = false);
  // All who come from now on are refused.
  void Drain();

  // From the loop. Taken: it has queued or answered a request that entered. Settle: between
  // messages and steps, what waits in its queue now and how fast it moves, if that is known; only
  // then do those taken no longer count.
  void Taken(int64_t tokens);
  void Settle(const Load& queue, std::optional<double> tokens_per_second);

 private:
  const std::string worker_;
  const Load bounds_;
  absl::Mutex mutex_;
  Load posted_ ABSL_GUARDED_BY(mutex_);
  Load taken_ ABSL_GUARDED_BY(mutex_);  // of those posted
  Load queue_ ABSL_GUARDED_BY(mutex_);
  std::optional<double> tokens_per_second_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_INTAKE_H_
