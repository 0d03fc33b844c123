// Exponentials and logarithms with the same bits on every machine. The C library's last bit differs
// by version and CPU, and must not decide a token or a beam.
#ifndef BATON_COMMON_BACKEND_EXP_LOG_H_
#define BATON_COMMON_BACKEND_EXP_LOG_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "absl/types/span.h"
#include "common/base/portable.h"

namespace baton::backend {

// Weights are whole numbers of 2^-40, so their sums are exact in any order; 2^22 of them stay below
// 2^63.
constexpr int kWeightBits = 40;
constexpr uint64_t kOne = uint64_t{1} << kWeightBits;

constexpr int kExp2TableBits = 10;
constexpr int kExp2TableSize = 1 << kExp2TableBits;

// 2^(-i / 1024), computed by the compiler. A struct, so that kernels can have a copy.
struct Exp2Table {
  double values[kExp2TableSize];
};
constexpr Exp2Table MakeExp2Table() {
  Exp2Table table{};
  for (int i = 0; i < kExp2TableSize; ++i) {
    const double y = -M_LN2 * static_cast<double>(i) / static_cast<double>(kExp2TableSize);
    double sum = 1;
    for (int n = 20; n > 0; --n) sum = 1 + sum * y / n;  // Taylor of e^y
    table.values[i] = sum;
  }
  return table;
}
inline constexpr Exp2Table kExp2Table = MakeExp2Table();

// 2^x for x <= 0 in units of 2^-40, rounded down. `table`: a copy of kExp2Table's values.
BATON_PORTABLE inline uint64_t FixedExp2(double x, const double* table) {
  if (!(x > -kWeightBits - 1)) return 0;
  const double scaled = x * -static_cast<double>(kExp2TableSize);
  const int index = static_cast<int>(scaled);
  const double y = (index - scaled) * (M_LN2 / static_cast<double>(kExp2TableSize));
  // e^y for y in (-0.0007, 0]: the first term left out is below 2^-46.
  const double rest = 1 + y * (1 + y * (1 / 2.0 + y * (1 / 6.0)));
  const double fraction = table[index & (kExp2TableSize - 1)] * rest;
  return static_cast<uint64_t>(fraction * static_cast<double>(kOne)) >> (index >> kExp2TableBits);
}
inline uint64_t FixedExp2(double x) { return FixedExp2(x, kExp2Table.values); }

// ln(n / 2^40) for n >= 1, to about 1e-15.
inline double FixedLog(uint64_t n) {
  int exponent = std::bit_width(n) - 1;
  // Exact but for the bits of n below the 53 that a double holds.
  double mantissa = static_cast<double>(n) / static_cast<double>(uint64_t{1} << exponent);
  if (mantissa > M_SQRT2) {
    mantissa /= 2;
    ++exponent;
  }
  // ln m = 2 atanh(s), |s| below 0.172: the first term left out is below 1e-18.
  const double s = (mantissa - 1) / (mantissa + 1);
  const double square = s * s;
  double sum = 0;
  for (int k = 21; k > 0; k -= 2) sum = sum * square + 1.0 / k;
  return (exponent - kWeightBits) * M_LN2 + 2 * s * sum;
}

// ln of the sum of e^(logit - highest). Off by at most V · 2^-40, as each term is rounded down.
// REQUIRES: `highest` is finite and the highest of the logits, at most 2^22 of them; none is NaN.
inline double LogSumExp(absl::Span<const float> logits, float highest) {
  uint64_t sum = 0;
  for (const float logit : logits) {
    const double below = static_cast<double>(logit) - static_cast<double>(highest);
    sum += FixedExp2(below * M_LOG2E);
  }
  return FixedLog(sum);
}

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_EXP_LOG_H_
