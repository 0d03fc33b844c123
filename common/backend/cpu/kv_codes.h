// Rows of a quantised KV pool: KvFormat's arithmetic. For kernels_*.cc only; see simd16.h.
#ifndef BATON_COMMON_BACKEND_CPU_KV_CODES_H_
#define BATON_COMMON_BACKEND_CPU_KV_CODES_H_

#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/simd16.h"

namespace baton::backend {
namespace {

// The largest code, and of kFp8 the largest magnitude.
constexpr float LargestCode(Codes codes) {
  return codes == Codes::kInt8 ? 255.0f : codes == Codes::kInt4 ? 15.0f : 448.0f;
}

// Codes [at, at + 16) of a row, decoded. REQUIRES: at is a multiple of 16.
template <Codes kCodes>
BATON_INLINE F32x16 LoadCodes(const uint8_t* row, int64_t at) {
  if constexpr (kCodes == Codes::kInt8) return LoadU8(row + at);
  if constexpr (kCodes == Codes::kInt4) return LoadU4(row + at / 2);
  return LoadE4M3(row + at);
}

struct ScaleAndZero {
  F32x16 scale, zero;
};

BATON_INLINE ScaleAndZero LoadScaleAndZero(const uint16_t* of_row) {
  return {Set1(HalfToFloat(of_row[0])), Set1(HalfToFloat(of_row[1]))};
}

// A row of d elements in float32, then zeros to the next multiple of 16.
template <Codes kCodes>
BATON_INLINE void DequantizeRow(const uint8_t* row, const uint16_t* scale_and_zero, int64_t d,
                                float* out) {
  const ScaleAndZero by = LoadScaleAndZero(scale_and_zero);
  int64_t i = 0;
  for (; i + 16 <= d; i += 16) Store(Fma(LoadCodes<kCodes>(row, i), by.scale, by.zero), out + i);
  if (i == d) return;
  const int rest = static_cast<int>(d - i);
  uint8_t codes[16] = {};
  const int64_t from = kCodes == Codes::kInt4 ? i / 2 : i;
  const int64_t bytes = kCodes == Codes::kInt4 ? rest / 2 : rest;
  for (int64_t b = 0; b < bytes; ++b) codes[b] = row[from + b];
  Store(Zero(), out + i);
  StorePart(Fma(LoadCodes<kCodes>(codes, 0), by.scale, by.zero), out + i, rest);
}

template <Codes kCodes>
BATON_INLINE void DequantizeRows(const AttentionTile& tile, const void* head, int count,
                                 int64_t stride, float* out) {
  const uint8_t* rows = static_cast<const uint8_t*>(head);
  const uint16_t* parameters =
      reinterpret_cast<const uint16_t*>(rows + tile.block_tokens * tile.row_bytes);
  for (int t = 0; t < count; ++t) {
    DequantizeRow<kCodes>(rows + t * tile.row_bytes, parameters + int64_t{2} * t, tile.head_dim,
                          out + t * stride);
  }
}

// The largest float16 that is not above x, and the smallest that is not below. |x| <= 65504.
BATON_INLINE uint16_t HalfAtMost(float x) {
  const uint16_t near = FloatToHalf(x);
  if (HalfToFloat(near) <= x) return near;
  if ((near & 0x7fff) == 0) return 0x8001;
  return static_cast<uint16_t>((near & 0x8000) != 0 ? near + 1 : near - 1);
}
BATON_INLINE uint16_t HalfAtLeast(float x) {
  return static_cast<uint16_t>(HalfAtMost(-x) ^ 0x8000);
}

// E4M3 of |y| <= 448 or a little more, to the nearest even.
BATON_INLINE uint8_t ToE4M3(float y) {
  const uint32_t bits = FloatToBits(y), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
  uint32_t code;
  if (rest < 0x3c800000) {  // below 2^-6: let the adder round to a multiple of 2^-9
    code = FloatToBits(BitsToFloat(rest) + 16384.0f) - FloatToBits(16384.0f);
  } else {
    code = ((rest + 0x7ffff + (rest >> 20 & 1)) >> 20) - ((127 - 7) << 3);
  }
  return static_cast<uint8_t>(sign | (code < 0x7e ? code : 0x7e));
}

struct RowRange {
  float least, largest;
  bool finite;
};

BATON_INLINE RowRange RangeOf(const float* x, int64_t n) {
  F32x16 least = Set1(__builtin_inff()), largest = Set1(-__builtin_inff()), sum = Zero();
  for (int64_t i = 0; i < n; i += 16) {
    float lanes[16];
    F32x16 a;
    if (n - i >= 16) {
      a = Load(x + i);
    } else {
      for (int lane = 0; lane < 16; ++lane) lanes[lane] = x[i + lane < n ? i + lane : n - 1];
      a = Load(lanes);
    }
    least = IfLess(a, least, a, least);
    largest = IfLess(largest, a, a, largest);
    sum = Fma(a, Zero(), sum);  // a NaN and an infinity make a NaN
  }
  float lanes[3][16];
  Store(least, lanes[0]);
  Store(largest, lanes[1]);
  Store(sum, lanes[2]);
  RowRange range = {lanes[0][0], lanes[1][0], true};
  for (int lane = 0; lane < 16; ++lane) {
    range.least = lanes[0][lane] < range.least ? lanes[0][lane] : range.least;
    range.largest = lanes[1][lane] > range.largest ? lanes[1][lane] : range.largest;
    range.finite = range.finite && lanes[2][lane] == 0;
  }
  return range;
}

// As kLargestKvElement of tensor.h, which this file cannot include.
BATON_INLINE float Saturate(float x) {
  return x < -65376.0f ? -65376.0f : x > 65376.0f ? 65376.0f : x;
}

void QuantizeRow(const float* x, Codes codes, int64_t n, uint8_t* row, uint16_t* scale_and_zero) {
  const RowRange range = RangeOf(x, n);
  const float largest_code = LargestCode(codes);
  const bool signed_codes = codes == Codes::kFp8;
  if (range.finite) {
    const float least = Saturate(range.least), largest = Saturate(range.largest);
    const float magnitude = -least > largest ? -least : largest;
    scale_and_zero[1] = signed_codes ? 0 : HalfAtMost(least);
    const float reach = signed_codes ? magnitude : largest - HalfToFloat(scale_and_zero[1]);
    scale_and_zero[0] = HalfAtLeast(reach / largest_code);
  } else {
    scale_and_zero[0] = scale_and_zero[1] = 0x7e00;  // NaN
  }
  const float scale = HalfToFloat(scale_and_zero[0]);
  // With scale 0 all elements are equal to the zero. Codes of a NaN row mean nothing.
  const F32x16 divisor = Set1(range.finite && scale > 0 ? scale : 1.0f);
  const F32x16 zero = Set1(range.finite ? HalfToFloat(scale_and_zero[1]) : 0.0f);
  const F32x16 bound = Set1(largest_code), least_code = Set1(signed_codes ? -largest_code : 0.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const int count = n - i < 16 ? static_cast<int>(n - i) : 16;
    F32x16 code = Div(Sub(count == 16 ? Load(x + i) : LoadPart(x + i, count), zero), divisor);
    code = IfLess(least_code, code, IfLess(code, bound, code, bound), least_code);
    if (!signed_codes) code = Round(code);
    float lanes[16];
    Store(code, lanes);
    if (signed_codes) {
      for (int lane = 0; lane < count; ++lane) row[i + lane] = ToE4M3(lanes[lane]);
    } else if (codes == Codes::kInt8) {
      for (int lane = 0; lane < count; ++lane) row[i + lane] = static_cast<uint8_t>(lanes[lane]);
    } else {
      for (int pair = 0; pair < count / 2; ++pair) {
        row[i / 2 + pair] = static_cast<uint8_t>(static_cast<int>(lanes[2 * pair]) |
                                                 static_cast<int>(lanes[2 * pair + 1]) << 4);
      }
    }
  }
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_KV_CODES_H_
