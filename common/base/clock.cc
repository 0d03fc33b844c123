#include "common/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace baton {
namespace {

class RealClock final : public Clock {
 public:
  absl::Duration SinceStart() const override {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  absl::Time Now() const override { return absl::Now(); }
};

}  // namespace

const Clock& Clock::Real() {
  static const RealClock* const clock = new RealClock();
  return *clock;
}

}  // namespace baton
