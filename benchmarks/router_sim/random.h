// Random numbers that are the same on every machine: the standard's distributions are not.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_RANDOM_H_
#define BATON_BENCHMARKS_ROUTER_SIM_RANDOM_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/base/splitmix64.h"

namespace baton::benchmarks {

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(SplitMix64(seed)) {}
  uint64_t Next() { return SplitMix64(state_++); }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }  // [0, 1)
  // REQUIRES: n > 0. The bias of the remainder is far below what a simulation shows.
  int Below(int n) { return static_cast<int>(Next() % static_cast<uint64_t>(n)); }
  int Between(int low, int high) { return low + Below(high - low + 1); }
  double Exponential(double mean) { return -mean * std::log1p(-Uniform()); }
  // Between `low` and `high`, each factor of two as likely.
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
    for (int i = 0; i < n; ++i) below_.push_back(sum += std::pow(i + 1, -exponent));
  }
  int Draw(SimRandom* random) const {
    const double at = random->Uniform() * below_.back();
    int rank = 0;
    while (rank + 1 < static_cast<int>(below_.size()) && below_[rank] <= at) ++rank;
    return rank;
  }

 private:
  std::vector<double> below_;
};

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_ROUTER_SIM_RANDOM_H_
