// Time that stands still until told.
#ifndef BATON_TESTS_ROUTER_FAKE_CLOCK_H_
#define BATON_TESTS_ROUTER_FAKE_CLOCK_H_

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"

namespace baton::testing {

class FakeClock : public Clock {
 public:
  absl::Duration SinceStart() const override {
    absl::MutexLock lock(&mutex_);
    return since_start_;
  }
  absl::Time Now() const override { return absl::UnixEpoch() + SinceStart(); }
  void Advance(absl::Duration by) {
    absl::MutexLock lock(&mutex_);
    since_start_ += by;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Duration since_start_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(1000);
};

// For routers over real gRPC, whose deadlines are of this world.
class SteppedClock final : public FakeClock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace baton::testing

#endif  // BATON_TESTS_ROUTER_FAKE_CLOCK_H_
