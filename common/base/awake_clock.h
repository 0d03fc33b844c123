// A clock that stands still while this process does not run.
//
// A process that was stopped, swapped out or part of a paused virtual machine finds on its return
// that every time-out has passed, though its peers may have answered in time: it was not there to
// hear them. By this clock no more than kMostPerBeat has passed, so a silence counts only for as
// long as the process could have noticed its end. Use it where a time-out speaks against another
// process; measure durations by the machine's clock.
#ifndef BATON_COMMON_BASE_AWAKE_CLOCK_H_
#define BATON_COMMON_BASE_AWAKE_CLOCK_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton {

// Thread-safe. Reading takes no lock.
class AwakeClock final : public Clock {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(50);
  // If a beat comes later than this after the one before, the process was kept from running, and
  // the rest of the time does not count. A thread that waits for a busy core is not that late.
  static constexpr absl::Duration kMostPerBeat = absl::Milliseconds(250);
  // So much uncounted time between two beats is a pause of the process.
  static constexpr absl::Duration kPause = absl::Seconds(1);

  // Beats every kPeriod on a thread; without `own_thread`, the owner calls Beat as often. The clock
  // stands still without beats. `base` must outlive it.
  explicit AwakeClock(const Clock& base, bool own_thread = true);
  ~AwakeClock() override;
  AwakeClock(const AwakeClock&) = delete;
  AwakeClock& operator=(const AwakeClock&) = delete;

  absl::Duration SinceStart() const override;
  absl::Time Now() const override { return base_.Now(); }
  // The result is zero as soon as the process runs again, even before the next beat.
  absl::Duration SincePause() const override;

  // Notes that the process runs now.
  void Beat();

 private:
  void Run();

  const Clock& base_;
  // What the clock shows is base_ - uncounted_ns_, but at most limit_ns_. A reader that loads the
  // limit first sees time stand still for a moment where a beat comes between its loads, never
  // jump.
  std::atomic<int64_t> uncounted_ns_{0};
  std::atomic<int64_t> limit_ns_;
  mutable absl::Mutex mutex_;
  std::optional<absl::Duration> pause_ended_ ABSL_GUARDED_BY(mutex_);  // time by this clock
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_AWAKE_CLOCK_H_
