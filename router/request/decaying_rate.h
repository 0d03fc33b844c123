// Events per second, the recent ones counting most.
#ifndef BATON_ROUTER_REQUEST_DECAYING_RATE_H_
#define BATON_ROUTER_REQUEST_DECAYING_RATE_H_

#include <algorithm>
#include <cmath>

#include "absl/time/time.h"

namespace baton::router {

// Exponentially weighted: what is `kMemory` old counts 1/e. Exact for a steady rate from the first
// second on. Unsynchronized; time must not run backwards.
class DecayingRate {
 public:
  static constexpr absl::Duration kMemory = absl::Seconds(10);

  void Add(absl::Duration now, double amount) {
    if (sum_ == 0) begin_ = last_ = now;
    sum_ = sum_ * std::exp(-absl::FDivDuration(now - last_, kMemory)) + amount;
    last_ = now;
  }

  // 0 before anything came.
  double PerSecond(absl::Duration now) const {
    if (sum_ == 0) return 0;
    const double decayed = sum_ * std::exp(-absl::FDivDuration(now - last_, kMemory));
    // What a steady rate of one per second would have made of the same time. Not less than a
    // second: one event at the very start is no rate.
    const absl::Duration seen = std::max(now - begin_, absl::Seconds(1));
    const double window =
        absl::ToDoubleSeconds(kMemory) * (1 - std::exp(-absl::FDivDuration(seen, kMemory)));
    return decayed / window;
  }

 private:
  double sum_ = 0;
  absl::Duration begin_, last_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_DECAYING_RATE_H_
