#include "router/fleet/signs_of_life.h"

#include <algorithm>
#include <cmath>

namespace baton::router {

void SignsOfLife::Heard(absl::Duration at) {
  if (at <= heard_at_) return;
  heard_at_ = at;
  const absl::Duration interval = at - counted_at_;
  if (interval < kApart) return;
  counted_at_ = at;
  ++intervals_;
  const double seconds = absl::ToDoubleSeconds(std::min(interval, kLongestInterval));
  // The first intervals weigh the same; later ones fade.
  const double weight = std::max(kWeightOfNew, 1.0 / intervals_);
  const double difference = seconds - mean_s_;
  mean_s_ += weight * difference;
  variance_s2_ = (1 - weight) * (variance_s2_ + weight * difference * difference);
}

void SignsOfLife::Restart(absl::Duration at) {
  *this = SignsOfLife();
  heard_at_ = counted_at_ = at;
}

double SignsOfLife::Suspicion(absl::Duration now) const {
  if (intervals_ < kFewestIntervals) return 0;
  const double deviation =
      std::max(std::sqrt(variance_s2_), absl::ToDoubleSeconds(kLeastDeviation));
  const double late = absl::ToDoubleSeconds(now - heard_at_ - kPauseOfALivingWorker) - mean_s_;
  // Half of erfc is the normal distribution's upper tail. At infinity its logarithm is infinite,
  // too.
  return -std::log10(std::erfc(late / (deviation * std::sqrt(2.0))) / 2);
}

}  // namespace baton::router
