// After a failure, a store is left alone for a while, twice as long after each further one.
#ifndef BATON_COMMON_KV_STORE_STORE_PAUSE_H_
#define BATON_COMMON_KV_STORE_STORE_PAUSE_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton::kv_store {

// Thread-safe. The clock must outlive it.
class StorePause {
 public:
  StorePause(absl::Duration first, absl::Duration longest, const Clock& clock)
      : first_(first), longest_(longest), clock_(clock) {}

  // UNAVAILABLE while a pause lasts.
  absl::Status Check() const;
  // Begins a pause, unless one lasts already. Returns the status.
  absl::Status Failed(absl::Status status);
  void Succeeded();

 private:
  const absl::Duration first_, longest_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;
  absl::Duration next_ ABSL_GUARDED_BY(mutex_) = first_;
  absl::Duration until_ ABSL_GUARDED_BY(mutex_) = -absl::InfiniteDuration();
  std::string cause_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::kv_store

#endif  // BATON_COMMON_KV_STORE_STORE_PAUSE_H_
