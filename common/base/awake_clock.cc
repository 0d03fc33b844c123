#include "common/base/awake_clock.h"

#include <algorithm>

#include "common/base/named_thread.h"

namespace baton {
namespace {

int64_t Nanoseconds(absl::Duration duration) { return absl::ToInt64Nanoseconds(duration); }

}  // namespace

AwakeClock::AwakeClock(const Clock& base, bool own_thread)
    : base_(base), limit_ns_(Nanoseconds(base.SinceStart() + kMostPerBeat)) {
  if (own_thread) thread_ = NamedThread("awake-clock", [this] { Run(); });
}

AwakeClock::~AwakeClock() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::Duration AwakeClock::SinceStart() const {
  const int64_t limit = limit_ns_.load(std::memory_order_acquire);
  const int64_t uncounted = uncounted_ns_.load(std::memory_order_acquire);
  // The base clock is read last: a thread that is stopped between the loads and here reads too late
  // a time, which the old limit bounds.
  return absl::Nanoseconds(std::min(Nanoseconds(base_.SinceStart()) - uncounted, limit));
}

void AwakeClock::Beat() {
  absl::MutexLock lock(&mutex_);
  const int64_t uncounted = uncounted_ns_.load(std::memory_order_relaxed);
  const int64_t limit = limit_ns_.load(std::memory_order_relaxed);
  const int64_t shown = Nanoseconds(base_.SinceStart()) - uncounted;
  const int64_t awake = std::min(shown, limit);
  if (shown > awake) {
    uncounted_ns_.store(uncounted + shown - awake, std::memory_order_release);
    if (absl::Nanoseconds(shown - awake) >= kPause) pause_ended_ = absl::Nanoseconds(awake);
  }
  limit_ns_.store(awake + Nanoseconds(kMostPerBeat), std::memory_order_release);
}

absl::Duration AwakeClock::SincePause() const {
  absl::MutexLock lock(&mutex_);
  const absl::Duration limit = absl::Nanoseconds(limit_ns_.load(std::memory_order_relaxed));
  const absl::Duration shown =
      base_.SinceStart() - absl::Nanoseconds(uncounted_ns_.load(std::memory_order_relaxed));
  if (shown - limit >= kPause) return absl::ZeroDuration();
  if (!pause_ended_) return absl::InfiniteDuration();
  return std::min(shown, limit) - *pause_ended_;
}

void AwakeClock::Run() {
  while (true) {
    Beat();
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kPeriod)) return;
  }
}

}  // namespace baton
