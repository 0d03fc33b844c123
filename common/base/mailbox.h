// Hands work to a loop thread: any thread posts closures, the loop thread runs them in order. It
// has no bound, so that a cancel or a release is never refused. Its callers bound it: a request is
// posted once worker::Intake has admitted it, and each open call posts a few small closures.
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
