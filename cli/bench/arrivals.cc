#include "cli/bench/arrivals.h"

#include <cmath>

#include "cli/random.h"

namespace baton::cli {

std::vector<double> ArrivalTimes(int count, double rate, double burstiness, uint64_t seed) {
  std::vector<double> times(count);
  if (std::isinf(rate) || count == 0) return times;
  Random random(seed);
  double sum = 0;
  for (double& time : times) {
    time = sum += std::isinf(burstiness) ? 1.0 : random.Gamma(burstiness);
  }
  // With a tiny shape, every gap may be 0.
  const double scale = sum > 0 ? count / rate / sum : 0;
  for (double& time : times) time *= scale;
  return times;
}

}  // namespace baton::cli
