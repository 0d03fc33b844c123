// Work handed to a loop thread: any thread posts closures, the loop runs them in order.
// The posters bound its length: a request is posted only after worker::SubmissionLimit accepted it,
// and each open call posts a few events. So a release or a cancel is never refused.
#ifndef BATON_COMMON_BASE_MAILBOX_H_
#define BATON_COMMON_BASE_MAILBOX_H_

#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton {

// Thread-safe. Only the loop thread calls RunPending().
class Mailbox {
 public:
  using Closure = absl::AnyInvocable<void()>;

  // Returns false and drops the closure if the mailbox is closed.
  bool Post(Closure closure) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    closures_.push_back(std::move(closure));
    return true;
  }

  // Refuses further closures. RunPending() still runs those inside.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }

  // Waits up to `timeout` for a closure, then runs all that are inside.
  void RunPending(absl::Duration timeout) {
    std::vector<Closure> batch;
    {
      absl::MutexLock lock(&mutex_);
      if (timeout > absl::ZeroDuration()) {
        mutex_.AwaitWithTimeout(absl::Condition(this, &Mailbox::NotEmpty), timeout);
      }
      batch.swap(closures_);
    }
    for (Closure& closure : batch) closure();
  }

 private:
  bool NotEmpty() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !closures_.empty(); }

  absl::Mutex mutex_;
  std::vector<Closure> closures_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_MAILBOX_H_
