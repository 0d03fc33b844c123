// Random numbers of the load generator, the same on every machine for a seed, as those of the
// standard library's distributions are not.
#ifndef BATON_CLI_RANDOM_H_
#define BATON_CLI_RANDOM_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/splitmix64.h"

namespace baton::cli {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() { return NextSplitMix64(&state_); }
  double Uniform();                 // [0, 1)
  int Between(int low, int high);   // both included
  double Exponential(double rate);  // mean 1 / rate
  double Normal();                  // mean 0, standard deviation 1
  // Mean `shape`, standard deviation sqrt(shape); `shape` above 0.
  double Gamma(double shape);
  std::vector<int32_t> Tokens(int count, int vocab_size);

  template <class T>
  void Shuffle(std::vector<T>* values) {
    for (size_t left = values->size(); left > 1; --left) {
      std::swap((*values)[left - 1], (*values)[Next() % left]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_RANDOM_H_
