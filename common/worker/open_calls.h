// Counts the calls of a gRPC service that have not ended: those whose last byte has not been sent.
#ifndef BATON_COMMON_WORKER_OPEN_CALLS_H_
#define BATON_COMMON_WORKER_OPEN_CALLS_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton::worker {

// Thread-safe.
class OpenCalls {
 public:
  // Counts one call until the last copy of the token is destroyed. The call's stream keeps it, and
  // the token keeps `calls` alive, as a stream may be destroyed late.
  static std::shared_ptr<void> Count(const std::shared_ptr<OpenCalls>& calls) {
    calls->Add(1);
    return std::shared_ptr<void>(nullptr, [calls](void*) { calls->Add(-1); });
  }

  // Returns when no call is open, after `timeout`, or after Release().
  void AwaitNone(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &OpenCalls::NoneOrReleased), timeout);
  }
  bool none() {
    absl::MutexLock lock(&mutex_);
    return count_ == 0;
  }
  void Release() {
    absl::MutexLock lock(&mutex_);
    released_ = true;
  }

 private:
  void Add(int change) {
    absl::MutexLock lock(&mutex_);
    count_ += change;
  }
  bool NoneOrReleased() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return count_ == 0 || released_;
  }

  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_OPEN_CALLS_H_
