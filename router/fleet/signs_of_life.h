// How suspicious a worker's silence is: how late its next sign of life is, against how its earlier
// ones came.
//
// This is the φ accrual failure detector of N. Hayashibara, X. Défago, R. Yared and T. Katayama,
// "The φ Accrual Failure Detector" (SRDS 2004). Suspicion is φ = −log10 P, where P is the
// probability that a sign comes later still than now, if the intervals between signs are normally
// distributed with the mean and the deviation of the recent ones. Three things differ from the
// paper. kPauseOfALivingWorker is added to the mean: a process that a busy machine does not run for
// a second is alive. Mean and variance are weighted exponentially, so no window is kept. Signs that
// come within kApart of each other count as one: a busy worker sends dozens of them a second, and
// would forget a late one within seconds.
#ifndef BATON_ROUTER_FLEET_SIGNS_OF_LIFE_H_
#define BATON_ROUTER_FLEET_SIGNS_OF_LIFE_H_

#include "absl/time/time.h"

namespace baton::router {

// Unsynchronized. Times are of one clock, which does not run backwards.
class SignsOfLife {
 public:
  static constexpr absl::Duration kPauseOfALivingWorker = absl::Seconds(1);
  static constexpr absl::Duration kApart = absl::Milliseconds(100);
  // The deviation is at least this: intervals that are all equal are still a guess.
  static constexpr absl::Duration kLeastDeviation = absl::Milliseconds(50);
  // Longer intervals count as this one: a longer silence says nothing of how signs usually come.
  static constexpr absl::Duration kLongestInterval = absl::Seconds(3);
  // Before so many intervals, no silence is suspicious.
  static constexpr int kFewestIntervals = 8;
  static constexpr double kWeightOfNew = 1.0 / 64;
  // A silence is suspicious from here on: a false alarm in 10^8 signs, if they were independent.
  static constexpr double kSuspicious = 8;

  // A sign has come; one that is older than the last is ignored.
  void Heard(absl::Duration at);
  // Forgets the intervals; silence counts from `at` on. Call it for a new process, too.
  void Restart(absl::Duration at);

  // When the last sign came.
  absl::Duration heard_at() const { return heard_at_; }
  // φ, which is 0 or more; infinite where it is too large to compute.
  double Suspicion(absl::Duration now) const;

 private:
  absl::Duration heard_at_;
  absl::Duration counted_at_;  // the sign that began the current interval
  int intervals_ = 0;
  double mean_s_ = 0;
  double variance_s2_ = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_SIGNS_OF_LIFE_H_
