// The time of a simulation.
#ifndef BATON_SIMULATOR_SIM_CLOCK_H_
#define BATON_SIMULATOR_SIM_CLOCK_H_

#include <cstdint>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton::simulator {

class SimClock final : public Clock {
 public:
  absl::Duration SinceStart() const override { return now_; }
  absl::Time Now() const override { return absl::UnixEpoch() + now_; }
  void Set(int64_t now_us) { now_ = absl::Microseconds(now_us); }

 private:
  absl::Duration now_;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_SIM_CLOCK_H_
