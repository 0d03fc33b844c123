// SplitMix64: random numbers that are the same on every machine, as the standard library's
// distributions are not. From G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number
// Generators", OOPSLA 2014, with the constants of S. Vigna's version. Not for secrets.
#ifndef BATON_COMMON_BASE_SPLITMIX64_H_
#define BATON_COMMON_BASE_SPLITMIX64_H_

#include <cstdint>

namespace baton {

inline constexpr uint64_t kSplitMix64Step = 0x9E3779B97F4A7C15u;

// The first number of the sequence with this seed; as a hash, a bijection.
constexpr uint64_t SplitMix64(uint64_t seed) {
  uint64_t z = seed + kSplitMix64Step;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The next number of the sequence whose state begins as the seed.
constexpr uint64_t NextSplitMix64(uint64_t* state) {
  const uint64_t number = SplitMix64(*state);
  *state += kSplitMix64Step;
  return number;
}

}  // namespace baton

#endif  // BATON_COMMON_BASE_SPLITMIX64_H_
