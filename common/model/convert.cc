#include "common/model/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace baton::model {
namespace {

using backend::DType;

float FromBF16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float FromF16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t fraction = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: fraction · 2^-24 is exact
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t widened = exponent == 31 ? 255 : exponent + 127 - 15;
  return std::bit_cast<float>(sign | widened << 23 | fraction << 13);
}

// The largest finite value of the dtype, and half a unit in its last place above: what rounds to
// infinity.
float OverflowsFrom(DType dtype) { return dtype == DType::kF16 ? 65520.0f : 0x1.FFp127f; }

bool IsExactIn(float value, DType dtype) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (dtype == DType::kBF16) return (bits & 0xffff) == 0;
  if (std::fabs(value) >= 0x1p-14f) return (bits & 0x1fff) == 0;
  const float units = value * 0x1p24f;  // of float16's subnormals
  return units == std::trunc(units);
}

}  // namespace

void ToF32(const void* source, DType dtype, size_t count, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, source, count * sizeof(float));
    return;
  }
  const char* bytes = static_cast<const char*>(source);
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, sizeof(bits));
    out[i] = dtype == DType::kBF16 ? FromBF16(bits) : FromF16(bits);
  }
}

void CountLoss(const void* source, DType from, DType to, size_t count, RoundingLoss* loss) {
  if (from == to || to == DType::kF32) return;
  constexpr size_t kSlab = 4096;
  float values[kSlab];
  const char* bytes = static_cast<const char*>(source);
  for (size_t begin = 0; begin < count; begin += kSlab) {
    const size_t size = std::min(kSlab, count - begin);
    ToF32(bytes + begin * backend::SizeOf(from), from, size, values);
    for (size_t i = 0; i < size; ++i) {
      const bool overflows = std::isfinite(values[i]) && std::fabs(values[i]) >= OverflowsFrom(to);
      loss->overflows += overflows;
      loss->inexact += overflows || !IsExactIn(values[i], to);
    }
  }
  loss->values += static_cast<int64_t>(count);
}

}  // namespace baton::model
