// Random operands and weights. Their values do not matter, but zeros would draw less power.
#ifndef BATON_BENCHMARKS_GPU_RANDOM_NUMBERS_H_
#define BATON_BENCHMARKS_GPU_RANDOM_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/backend/tensor.h"

namespace baton::gpu_bench {

// 16-bit values (kF16 or kBF16), signs and mantissas at random, magnitudes from 2^-6 to 2^-5: sums
// of a thousand products stay near 1.
inline std::vector<uint16_t> RandomHalves(size_t count, backend::DType dtype) {
  const bool f16 = dtype == backend::DType::kF16;
  const uint32_t exponent = f16 ? 0x2400 : 0x3c80, free = f16 ? 0x83ff : 0x807f;
  std::vector<uint16_t> values(count);
  uint32_t state = 1;
  for (uint16_t& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<uint16_t>(exponent | (state >> 16 & free));
  }
  return values;
}

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_RANDOM_NUMBERS_H_
