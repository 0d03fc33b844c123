// Time that stands still until told.
#ifndef BATON_TESTS_ROUTER_FAKE_CLOCK_H_
#define BATON_TESTS_ROUTER_FAKE_CLOCK_H_

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/awake_clock.h"
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

// Lets time pass in a process that runs.
inline void RunFor(absl::Duration time, FakeClock& machine, AwakeClock& process) {
  for (absl::Duration left = time; left > absl::ZeroDuration(); left -= AwakeClock::kPeriod) {
    machine.Advance(std::min(left, AwakeClock::kPeriod));
    process.Beat();
  }
}

// For routers over real gRPC, whose deadlines are of this world.
class SteppedClock final : public FakeClock {
 public:
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace baton::testing

#endif  // BATON_TESTS_ROUTER_FAKE_CLOCK_H_
