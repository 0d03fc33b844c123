// The time, as a constructor parameter, so that tests can pass a fake clock.
#ifndef BATON_COMMON_BASE_CLOCK_H_
#define BATON_COMMON_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace baton {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic time since an arbitrary point, for durations and deadlines within one process.
  virtual absl::Duration SinceStart() const = 0;
  // Wall time, for logs and other text that people read.
  virtual absl::Time Now() const = 0;
  // How long ago, by SinceStart, this process was last paused; infinite where it never was, and by
  // clocks that do not notice (all but AwakeClock).
  virtual absl::Duration SincePause() const { return absl::InfiniteDuration(); }

  // The clock of the machine, which is never destroyed.
  static const Clock& Real();
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_CLOCK_H_
