// Sixteen floats as one value on registers of any width, so that a sum over lanes has the same
// order, and a kernel the same bits, on AVX2 and AVX-512.
//
// For kernels_*.cc only: each compiles this file with its own instruction-set flags. All of it is
// in an anonymous namespace, and those files include no other header with inline functions, so
// that the linker never hands code for a newer CPU to a caller on an older one.
#ifndef BATON_COMMON_BACKEND_CPU_SIMD16_H_
#define BATON_COMMON_BACKEND_CPU_SIMD16_H_

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define BATON_INLINE inline __attribute__((always_inline))
// For tiles: GCC 12 keeps their sums in registers only where it does not inline them.
#define BATON_NO_INLINE __attribute__((noinline))

namespace baton::backend {
namespace {

BATON_INLINE float BitsToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

BATON_INLINE uint32_t FloatToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

#if defined(__AVX512F__)

struct F32x16 {
  __m512 v;
};
BATON_INLINE F32x16 Set1(float x) { return {_mm512_set1_ps(x)}; }
BATON_INLINE F32x16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
BATON_INLINE void Store(F32x16 a, float* p) { _mm512_storeu_ps(p, a.v); }
BATON_INLINE F32x16 LoadPart(const float* p, int count) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p)};
}
BATON_INLINE void StorePart(F32x16 a, float* p, int count) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), a.v);
}
BATON_INLINE F32x16 Add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
BATON_INLINE F32x16 Sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
BATON_INLINE F32x16 Mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
BATON_INLINE F32x16 Div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
BATON_INLINE F32x16 Max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
BATON_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
BATON_INLINE F32x16 Round(F32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// 2^n for integers n in [-126, 127].
BATON_INLINE F32x16 PowerOfTwo(F32x16 n) {
  const __m512i e = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(e, 23))};
}
// a < b ? x : y
BATON_INLINE F32x16 SwapHalves(F32x16 a) { return {_mm512_shuffle_f32x4(a.v, a.v, 0x4e)}; }
BATON_INLINE F32x16 IfLess(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
BATON_INLINE F32x16 LoadBF16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
BATON_INLINE __m256i RoundToBF16(F32x16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, quiet), 16));
}
BATON_INLINE void StoreBF16(F32x16 a, uint16_t* p) {
  _mm256_storeu_si256((__m256i*)p, RoundToBF16(a));
}
BATON_INLINE F32x16 LoadF16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))};
}
BATON_INLINE void StoreF16(F32x16 a, uint16_t* p) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
BATON_INLINE F32x16 FromU8(__m128i bytes) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes))};
}

#elif defined(__AVX2__)

struct F32x16 {
  __m256 lo, hi;
};
BATON_INLINE F32x16 Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
BATON_INLINE F32x16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
BATON_INLINE void Store(F32x16 a, float* p) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
BATON_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
BATON_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
BATON_INLINE F32x16 Round(F32x16 a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
BATON_INLINE __m256 PowerOfTwo(__m256 n) {
  const __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
BATON_INLINE F32x16 PowerOfTwo(F32x16 n) { return {PowerOfTwo(n.lo), PowerOfTwo(n.hi)}; }
BATON_INLINE F32x16 SwapHalves(F32x16 a) { return {a.hi, a.lo}; }
BATON_INLINE F32x16 IfLess(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
BATON_INLINE __m256 WidenBF16(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
BATON_INLINE F32x16 LoadBF16(const uint16_t* p) {
  return {WidenBF16(_mm_loadu_si128((const __m128i*)p)),
          WidenBF16(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
BATON_INLINE __m128i RoundToBF16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i kept = _mm256_castps_si256(
      _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan));
  const __m256i high = _mm256_srli_epi32(kept, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
BATON_INLINE void StoreBF16(F32x16 a, uint16_t* p) {
  _mm_storeu_si128((__m128i*)p, RoundToBF16(a.lo));
  _mm_storeu_si128((__m128i*)(p + 8), RoundToBF16(a.hi));
}
BATON_INLINE F32x16 FromU8(__m128i bytes) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
}
BATON_INLINE F32x16 LoadF16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
BATON_INLINE void StoreF16(F32x16 a, uint16_t* p) {
  _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

#else  // any other CPU: loops that compilers turn into what vectors there are

struct F32x16 {
  float v[16];
};
#define BATON_EACH_LANE for (int i = 0; i < 16; ++i)
BATON_INLINE F32x16 Set1(float x) {
  F32x16 r;
  BATON_EACH_LANE r.v[i] = x;
  return r;
}
BATON_INLINE F32x16 Load(const float* p) {
  F32x16 r;
  BATON_EACH_LANE r.v[i] = p[i];
  return r;
}
BATON_INLINE void Store(F32x16 a, float* p) { BATON_EACH_LANE p[i] = a.v[i]; }
BATON_INLINE F32x16 Add(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.v[i] += b.v[i];
  return a;
}
BATON_INLINE F32x16 Sub(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.v[i] -= b.v[i];
  return a;
}
BATON_INLINE F32x16 Mul(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.v[i] *= b.v[i];
  return a;
}
BATON_INLINE F32x16 Div(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.v[i] /= b.v[i];
  return a;
}
BATON_INLINE F32x16 Max(F32x16 a, F32x16 b) {
  BATON_EACH_LANE a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
BATON_INLINE F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {
#if defined(__aarch64__)
  BATON_EACH_LANE c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
#else  // no fused instruction: the library's emulation would take a hundred times as long
  BATON_EACH_LANE c.v[i] = a.v[i] * b.v[i] + c.v[i];
#endif
  return c;
}
BATON_INLINE F32x16 Round(F32x16 a) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it leaves no bits behind the point
  BATON_EACH_LANE a.v[i] = (a.v[i] + magic) - magic;
  return a;
}
BATON_INLINE F32x16 PowerOfTwo(F32x16 n) {
  BATON_EACH_LANE n.v[i] = BitsToFloat(static_cast<uint32_t>(static_cast<int>(n.v[i]) + 127) << 23);
  return n;
}
BATON_INLINE F32x16 SwapHalves(F32x16 a) {
  F32x16 r;
  BATON_EACH_LANE r.v[i] = a.v[i ^ 8];
  return r;
}
BATON_INLINE F32x16 IfLess(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  BATON_EACH_LANE y.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
  return y;
}
BATON_INLINE F32x16 LoadBF16(const uint16_t* p) {
  F32x16 r;
  BATON_EACH_LANE r.v[i] = BitsToFloat(static_cast<uint32_t>(p[i]) << 16);
  return r;
}
BATON_INLINE void StoreBF16(F32x16 a, uint16_t* p) {
  BATON_EACH_LANE {
    const uint32_t bits = FloatToBits(a.v[i]);
    const uint32_t up = bits + 0x7fff + ((bits >> 16) & 1);
    p[i] = static_cast<uint16_t>((a.v[i] != a.v[i] ? bits | 0x400000 : up) >> 16);
  }
}
BATON_INLINE float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  if (rest >= 0x7c00) return BitsToFloat(sign | 0x7f800000 | ((rest & 0x3ff) << 13));
  // Scaling by 2^112 moves the exponent, subnormals included, without a branch for them.
  const float value = BitsToFloat(rest << 13) * BitsToFloat(0x77800000);
  return BitsToFloat(sign | FloatToBits(value));
}
BATON_INLINE uint16_t FloatToHalf(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return sign | 0x7e00;
  if (rest >= 0x477ff000) return sign | 0x7c00;  // rounds to 2^16 or more
  if (rest < 0x38800000) {  // subnormal: let the adder round to a multiple of 2^-24
    return sign | static_cast<uint16_t>(FloatToBits(BitsToFloat(rest) + 0.5f) - 0x3f000000);
  }
  return sign | static_cast<uint16_t>((rest - 0x38000000 + 0xfff + ((rest >> 13) & 1)) >> 13);
}
BATON_INLINE F32x16 LoadF16(const uint16_t* p) {
  F32x16 r;
  BATON_EACH_LANE r.v[i] = HalfToFloat(p[i]);
  return r;
}
BATON_INLINE void StoreF16(F32x16 a, uint16_t* p) { BATON_EACH_LANE p[i] = FloatToHalf(a.v[i]); }
BATON_INLINE F32x16 LoadU8(const uint8_t* p) {
  F32x16 r;
  BATON_EACH_LANE r.v[i] = p[i];
  return r;
}
BATON_INLINE F32x16 LoadU4(const uint8_t* p) {
  F32x16 r;
  BATON_EACH_LANE r.v[i] = static_cast<float>(p[i / 2] >> i % 2 * 4 & 15);
  return r;
}
#undef BATON_EACH_LANE

#endif

#if defined(__AVX2__)
BATON_INLINE float HalfToFloat(uint16_t half) { return _cvtsh_ss(half); }
BATON_INLINE uint16_t FloatToHalf(float value) {
  return _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT);
}
BATON_INLINE F32x16 LoadU8(const uint8_t* p) { return FromU8(_mm_loadu_si128((const __m128i*)p)); }
// Sixteen codes of 4 bits, the even one low.
BATON_INLINE F32x16 LoadU4(const uint8_t* p) {
  const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i*)p));
  const __m128i apart = _mm_or_si128(wide, _mm_slli_epi16(wide, 4));
  return FromU8(_mm_and_si128(apart, _mm_set1_epi8(15)));
}
#endif

// E4M3: as a float16 with the same mantissa and exponent, 256 times too small.
BATON_INLINE F32x16 LoadE4M3(const uint8_t* p) {
  uint16_t halves[16];
#if defined(__AVX2__)
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p));
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(wide, 8), _mm256_set1_epi16(-0x8000));
  const __m256i rest = _mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16(0x3f80));
  _mm256_storeu_si256((__m256i*)halves, _mm256_or_si256(sign, rest));
#else
  for (int i = 0; i < 16; ++i) {
    halves[i] = static_cast<uint16_t>((p[i] & 0x80) << 8 | (p[i] & 0x7f) << 7);
  }
#endif
  return Mul(LoadF16(halves), Set1(256.0f));
}

#if !defined(__AVX512F__)
BATON_INLINE F32x16 LoadPart(const float* p, int count) {
  float lanes[16] = {};
  for (int i = 0; i < count; ++i) lanes[i] = p[i];
  return Load(lanes);
}
BATON_INLINE void StorePart(F32x16 a, float* p, int count) {
  float lanes[16];
  Store(a, lanes);
  for (int i = 0; i < count; ++i) p[i] = lanes[i];
}
#endif

BATON_INLINE F32x16 Zero() { return Set1(0.0f); }

// In a fixed tree, the same on every instruction set.
BATON_INLINE float SumLanes(F32x16 a) {
  float lanes[16];
  Store(a, lanes);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// e^x within 2 ulp for x in [-87, 88]; exactly 1 for 0; 0 below -87 (-inf included).
BATON_INLINE F32x16 Exp(F32x16 x) {
  const F32x16 floor = Set1(-87.0f);
  // In this order of operands a NaN stays one.
  const F32x16 y = Max(floor, IfLess(Set1(88.0f), x, Set1(88.0f), x));
  const F32x16 n = Round(Mul(y, Set1(1.44269504f)));
  // ln 2 in two parts: n times the first is exact.
  const F32x16 r = Fma(n, Set1(2.12194440e-4f), Fma(n, Set1(-0.693359375f), y));
  F32x16 p = Set1(1.0f / 5040);
  p = Fma(p, r, Set1(1.0f / 720));
  p = Fma(p, r, Set1(1.0f / 120));
  p = Fma(p, r, Set1(1.0f / 24));
  p = Fma(p, r, Set1(1.0f / 6));
  p = Fma(p, r, Set1(0.5f));
  p = Fma(p, r, Set1(1.0f));
  p = Fma(p, r, Set1(1.0f));
  return IfLess(x, floor, Zero(), Mul(p, PowerOfTwo(n)));
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_SIMD16_H_
