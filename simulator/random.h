// Random numbers that do not depend on the standard library, as the standard's distributions do.
// Exponential, LogUniform and Zipf may differ in the last bit between math libraries.
#ifndef BATON_SIMULATOR_RANDOM_H_
#define BATON_SIMULATOR_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/splitmix64.h"

namespace baton::simulator {

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(SplitMix64(seed)) {}
  uint64_t Next() { return SplitMix64(state_++); }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }  // [0, 1)
  // In [0, n). REQUIRES: n > 0. The modulo bias is negligible for a simulation.
  int Below(int n) { return static_cast<int>(Next() % static_cast<uint64_t>(n)); }
  // In [low, high].
  int Between(int low, int high) { return low + Below(high - low + 1); }
  double Exponential(double mean) { return -mean * std::log1p(-Uniform()); }
  // In [low, high), every octave equally likely.
  int LogUniform(int low, int high) {
    return static_cast<int>(low * std::exp(Uniform() * std::log(static_cast<double>(high) / low)));
  }

 private:
  uint64_t state_;
};

// Rank r of n with probability proportional to 1 / (r + 1)^exponent.
class Zipf {
 public:
  Zipf(int n, double exponent) {
    double sum = 0;
    for (int i = 0; i < n; ++i) cumulative_.push_back(sum += std::pow(i + 1, -exponent));
  }
  int Draw(SimRandom* random) const {
    const double at = random->Uniform() * cumulative_.back();
    int rank = 0;
    while (rank + 1 < static_cast<int>(cumulative_.size()) && cumulative_[rank] <= at) ++rank;
    return rank;
  }

 private:
  std::vector<double> cumulative_;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_RANDOM_H_
