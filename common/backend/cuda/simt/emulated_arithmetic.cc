// The emulated device's arithmetic: 16-bit floats, and the products of tensor cores.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/backend/cuda/simt/simt.h"
#include "common/base/check.h"

namespace baton::backend::cuda::emulated {
namespace {

// What a register of every x86-64 holds.
using Doubles = double __attribute__((vector_size(16)));
using Floats = float __attribute__((vector_size(16)));
using Words = int32_t __attribute__((vector_size(16)));

// The same as HalfToF32().
Floats HalvesToF32(Words bits) {
  const Words magnitude = (bits & 0x7fff) << 13;
  // Exponents of halves are biased by 15, of floats by 127. Infinities and NaNs have the greatest
  // of both.
  const Words normal = magnitude + (112 << 23) + ((magnitude >= 0x7c00 << 13) & 112 << 23);
  // Subnormal halves are as far apart as the floats that begin at 2^-14.
  const Floats subnormal = reinterpret_cast<Floats>(magnitude | 113 << 23) - 0x1p-14f;
  const Words is_subnormal = magnitude < 1 << 23;
  const Words wide = (is_subnormal & reinterpret_cast<Words>(subnormal)) | (~is_subnormal & normal);
  return reinterpret_cast<Floats>(wide | (bits & 0x8000) << 16);
}

template <MmaOperand::Type kType, int kCount>
void ToF32(const uint32_t (&bits)[kCount], float (&to)[kCount]) {
  for (int i = 0; i < kCount; i += 4) {
    Words four;
    std::memcpy(&four, &bits[i], sizeof(four));
    const Floats values =
        kType == MmaOperand::Type::kHalf ? HalvesToF32(four) : reinterpret_cast<Floats>(four << 16);
    std::memcpy(&to[i], &values, sizeof(values));
  }
}

// Row-major A [16, k] and B [k, 8], as PTX's fragments hold them. A sum's terms are added in their
// order, of all columns at once.
template <int kK, MmaOperand::Type kType>
void Mma(void* const (&operands)[kWarpLanes]) {
  constexpr int kRows = 16, kColumns = 8;
  uint32_t a_bits[kRows * kK], b_bits[kK * kColumns];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto& operand = *static_cast<const MmaOperand*>(operands[lane]);
    BATON_CHECK(operand.type == kType) << "lanes of a warp multiply different types";
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < kK / 8; ++half) {
      const int k = half * 8 + pair;
      for (int i = 0; i < 2; ++i) {
        const uint32_t two = operand.a[half * 2 + i];
        a_bits[(group + i * 8) * kK + k] = two & 0xffff;
        a_bits[(group + i * 8) * kK + k + 1] = two >> 16;
      }
      b_bits[k * kColumns + group] = operand.b[half] & 0xffff;
      b_bits[(k + 1) * kColumns + group] = operand.b[half] >> 16;
    }
  }
  float a[kRows * kK], b[kK * kColumns];
  ToF32<kType>(a_bits, a);
  ToF32<kType>(b_bits, b);
  constexpr int kTwos = kColumns / 2;
  Doubles b_rows[kK][kTwos];
  double sums[kRows][kColumns];
  for (int k = 0; k < kK; ++k) {
    for (int i = 0; i < kTwos; ++i) {
      b_rows[k][i] = Doubles{b[k * kColumns + i * 2], b[k * kColumns + i * 2 + 1]};
    }
  }
  for (int row = 0; row < kRows; ++row) {
    Doubles of_row[kTwos] = {};
    for (int k = 0; k < kK; ++k) {
      const double factor = a[row * kK + k];
      for (int i = 0; i < kTwos; ++i) of_row[i] += factor * b_rows[k][i];
    }
    std::memcpy(sums[row], of_row, sizeof(of_row));
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    float* const d = static_cast<const MmaOperand*>(operands[lane])->d;
    for (int i = 0; i < 4; ++i) {
      const double sum = sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
      d[i] = static_cast<float>(static_cast<double>(d[i]) + sum);
    }
  }
}

template <int kK>
void MmaOfType(void* const (&operands)[kWarpLanes]) {
  if (static_cast<const MmaOperand*>(operands[0])->type == MmaOperand::Type::kHalf) {
    return Mma<kK, MmaOperand::Type::kHalf>(operands);
  }
  Mma<kK, MmaOperand::Type::kBFloat16>(operands);
}

}  // namespace

// Rounds to the nearest, ties to even.
uint16_t HalfFromF32(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (BitsFloat(magnitude) >= 65'520.0f) return static_cast<uint16_t>(sign | 0x7c00);
  if (BitsFloat(magnitude) < 0x1p-14f) {
    // The floats that begin at 0.5 are as far apart as subnormal halves, so this sum is rounded as
    // they are.
    const float sum = BitsFloat(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (FloatBits(sum) - FloatBits(0.5f)));
  }
  // A carry out of the mantissa is the next exponent.
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23);
  return static_cast<uint16_t>(sign | rounded >> 13);
}

uint16_t BFloat16FromF32(float value) {
  uint32_t bits = FloatBits(value);
  if (std::isnan(value)) return 0x7fff;
  bits += 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>(bits >> 16);
}

float FmaToOdd(float a, float b, float c) {
  // The last place of an inexact result is made odd.
  const auto to_odd = [](auto rounded, double error) {
    using Float = decltype(rounded);
    using Bits = std::conditional_t<sizeof(Float) == 8, uint64_t, uint32_t>;
    if (error == 0 || !std::isfinite(rounded) || std::bit_cast<Bits>(rounded) % 2 == 1) {
      return rounded;
    }
    constexpr auto kInfinity = std::numeric_limits<Float>::infinity();
    return std::nextafter(rounded, error < 0 ? -kInfinity : kInfinity);
  };
  const double product = double{a} * b;  // exact
  const double sum = product + c, c_part = sum - product;
  const double error = (product - (sum - c_part)) + (c - c_part);  // Knuth's TwoSum
  const double exact = to_odd(sum, error);
  const auto single = static_cast<float>(exact);
  return to_odd(single, exact - single);
}

void MmaK8(void* const (&operands)[kWarpLanes]) { MmaOfType<8>(operands); }
void MmaK16(void* const (&operands)[kWarpLanes]) { MmaOfType<16>(operands); }

}  // namespace baton::backend::cuda::emulated
