// A clock of paced devices for their tests.
#ifndef BATON_TESTS_TESTING_WAITED_TIMER_H_
#define BATON_TESTS_TESTING_WAITED_TIMER_H_

#include <algorithm>
#include <mutex>

#include "absl/time/time.h"
#include "tests/testing/paced_backend.h"

namespace baton::testing {

// Time passes only while a caller waits.
class WaitedTimer final : public PaceTimer {
 public:
  absl::Duration Now() const override {
    std::lock_guard lock(mutex_);
    return now_;
  }
  void WaitUntil(absl::Duration time) const override {
    std::lock_guard lock(mutex_);
    now_ = std::max(now_, time);
  }

 private:
  mutable std::mutex mutex_;
  mutable absl::Duration now_ = absl::Seconds(5);
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_WAITED_TIMER_H_
