// Time as a constructor parameter, so that tests own it.
#ifndef BATON_COMMON_BASE_CLOCK_H_
#define BATON_COMMON_BASE_CLOCK_H_

#include "absl/time/time.h"

namespace baton {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, from an arbitrary start. For durations and deadlines inside one process.
  virtual absl::Duration SinceStart() const = 0;
  // Wall time, for logs and for output to users.
  virtual absl::Time Now() const = 0;

  // The machine's clock. Never destroyed.
  static const Clock& Real();
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_CLOCK_H_
