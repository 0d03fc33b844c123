// Bytes and whole numbers as sixteen columns of four, on registers of any width: what products of
// 8-bit activations are made of. For kernels_*.cc only; see simd16.h.
#ifndef BATON_COMMON_BACKEND_CPU_QUANTIZED_SIMD_H_
#define BATON_COMMON_BACKEND_CPU_QUANTIZED_SIMD_H_

#include "common/backend/cpu/simd16.h"
#include "common/backend/quantized.h"

namespace baton::backend {
namespace {

// I32x16: sixteen sums. U8x64: four unsigned bytes for each. DotSum adds up kDots products of such
// bytes with the four signed bytes of x, kDot of them before this one: AddBytes those of any bytes,
// less kByteOffset; Add those of bytes below 1 << kBits, at most 6.
// kQuantizedTileRows, kQuantizedTileVectors: of the tiles that GCC 12 makes the fastest. Up to
// kWideTileRows of packed weights, or kWideBytesRows of bytes, those of two vectors are.
// kFourBitTiles: unpacked bytes of 4 bits have tiles apart from those of 5.
#if defined(__AVX512F__)

constexpr int kQuantizedTileRows = 6, kQuantizedTileVectors = 2;
constexpr int kWideTileRows = 0, kWideBytesRows = 0;

struct I32x16 {
  __m512i v;
};
using U8x64 = __m512i;
BATON_INLINE I32x16 Fill(int32_t x) { return {_mm512_set1_epi32(x)}; }
BATON_INLINE F32x16 ToFloat(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
BATON_INLINE U8x64 LoadBytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
BATON_INLINE void StoreBytes(U8x64 a, uint8_t* p) { _mm512_storeu_si512(p, a); }
BATON_INLINE U8x64 LowNibbles(U8x64 a) { return _mm512_and_si512(a, _mm512_set1_epi8(15)); }
BATON_INLINE U8x64 HighNibbles(U8x64 a) { return LowNibbles(_mm512_srli_epi16(a, 4)); }
BATON_INLINE U8x64 AddBytes(U8x64 a, U8x64 b) { return _mm512_add_epi8(a, b); }
// a | (b shifted left by kShift, right if it is below 0) & mask, of bytes.
template <int kShift>
BATON_INLINE U8x64 OrShifted(U8x64 a, U8x64 b, int mask) {
  __m512i shifted;
  if constexpr (kShift >= 0) {
    shifted = _mm512_slli_epi16(b, kShift);
  } else {
    shifted = _mm512_srli_epi16(b, -kShift);
  }
  constexpr int kAOrBAndC = 0xf8;
  return _mm512_ternarylogic_epi32(a, shifted, _mm512_set1_epi8(static_cast<char>(mask)),
                                   kAOrBAndC);
}
// Sixteen signed bytes.
BATON_INLINE F32x16 LoadI8(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
// Sixteen powers of two, of which the bytes are the exponents as float32 has them.
BATON_INLINE F32x16 LoadExponents(const uint8_t* p) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 23))};
}
// kFp4Values of bytes below 16.
BATON_INLINE U8x64 Fp4Bytes(U8x64 codes) {
  const __m128i values = _mm_loadu_si128((const __m128i*)kFp4Values);
  return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), codes);
}
// A byte for each of sixteen columns, four times.
BATON_INLINE U8x64 SpreadBytes(const uint8_t* p) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  const __m512i twice = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 8));
  return _mm512_or_si512(twice, _mm512_slli_epi32(twice, 16));
}
#if defined(__AVX512VNNI__)
constexpr int kByteOffset = 0;
BATON_INLINE I32x16 DotBytes(I32x16 sum, U8x64 w, int32_t x) {
  return {_mm512_dpbusd_epi32(sum.v, w, _mm512_set1_epi32(x))};
}
#else
#define BATON_SUMS_OF_16_BITS
using I16x32 = __m512i;
BATON_INLINE I32x16 SumOf(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
BATON_INLINE I16x32 SumPairs(I16x32 a, I16x32 b) { return _mm512_add_epi16(a, b); }
BATON_INLINE I32x16 Widen(I16x32 pairs) { return {_mm512_madd_epi16(pairs, _mm512_set1_epi16(1))}; }
BATON_INLINE I16x32 DotPairs(U8x64 w, int32_t x) {
  return _mm512_maddubs_epi16(w, _mm512_set1_epi32(x));
}
// Two products of 255 and 127 do not fit into 16 bits: bytes from -128 to 127, the sign moved to x.
constexpr int kByteOffset = 128;
BATON_INLINE I32x16 DotBytes(I32x16 sum, U8x64 w, int32_t x) {
  const __m512i value = _mm512_xor_si512(w, _mm512_set1_epi8(-128));
  const __m512i all = _mm512_set1_epi32(x);
  const __m512i turned =
      _mm512_mask_sub_epi8(all, _mm512_movepi8_mask(value), _mm512_setzero_si512(), all);
  return SumOf(sum, Widen(_mm512_maddubs_epi16(_mm512_abs_epi8(value), turned)));
}
#endif

// The largest magnitude as bits; NaN is above infinity.
BATON_INLINE uint32_t LargestBits(F32x16 a, F32x16 b) {
  const __m512i rest = _mm512_set1_epi32(0x7fffffff);
  return static_cast<uint32_t>(
      _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a.v), rest),
                                               _mm512_and_si512(_mm512_castps_si512(b.v), rest))));
}
// Rounds to whole numbers of 8 bits; `sums`: of those of a and of b.
BATON_INLINE void StoreWhole(F32x16 a, F32x16 b, int8_t* values, int32_t sums[2]) {
  const __m512i low = _mm512_cvtps_epi32(a.v), high = _mm512_cvtps_epi32(b.v);
  _mm_storeu_si128((__m128i*)values, _mm512_cvtepi32_epi8(low));
  _mm_storeu_si128((__m128i*)(values + 16), _mm512_cvtepi32_epi8(high));
  sums[0] = _mm512_reduce_add_epi32(low);
  sums[1] = _mm512_reduce_add_epi32(high);
}

#elif defined(__AVX2__)

constexpr int kQuantizedTileRows = 4, kQuantizedTileVectors = 1;
#if defined(__AVXVNNI__)
constexpr int kWideTileRows = 4, kWideBytesRows = 2;
#else
constexpr int kWideTileRows = 4, kWideBytesRows = 4;
#endif

struct I32x16 {
  __m256i lo, hi;
};
struct U8x64 {
  __m256i lo, hi;
};
BATON_INLINE I32x16 Fill(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
BATON_INLINE F32x16 ToFloat(I32x16 a) {
  return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
BATON_INLINE U8x64 LoadBytes(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
BATON_INLINE void StoreBytes(U8x64 a, uint8_t* p) {
  _mm256_storeu_si256((__m256i*)p, a.lo);
  _mm256_storeu_si256((__m256i*)(p + 32), a.hi);
}
BATON_INLINE U8x64 LowNibbles(U8x64 a) {
  const __m256i low = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, low), _mm256_and_si256(a.hi, low)};
}
BATON_INLINE U8x64 HighNibbles(U8x64 a) {
  return LowNibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)});
}
BATON_INLINE U8x64 AddBytes(U8x64 a, U8x64 b) {
  return {_mm256_add_epi8(a.lo, b.lo), _mm256_add_epi8(a.hi, b.hi)};
}
template <int kShift>
BATON_INLINE __m256i OrShifted(__m256i a, __m256i b, int mask) {
  __m256i shifted;
  if constexpr (kShift >= 0) {
    shifted = _mm256_slli_epi16(b, kShift);
  } else {
    shifted = _mm256_srli_epi16(b, -kShift);
  }
  return _mm256_or_si256(a, _mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(mask))));
}
template <int kShift>
BATON_INLINE U8x64 OrShifted(U8x64 a, U8x64 b, int mask) {
  return {OrShifted<kShift>(a.lo, b.lo, mask), OrShifted<kShift>(a.hi, b.hi, mask)};
}
BATON_INLINE F32x16 LoadI8(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
BATON_INLINE F32x16 LoadExponents(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  const auto eight = [](__m128i low) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(low), 23));
  };
  return {eight(bytes), eight(_mm_srli_si128(bytes, 8))};
}
BATON_INLINE U8x64 Fp4Bytes(U8x64 codes) {
  const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)kFp4Values));
  return {_mm256_shuffle_epi8(values, codes.lo), _mm256_shuffle_epi8(values, codes.hi)};
}
BATON_INLINE __m256i SpreadEight(__m128i bytes) {
  return _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(0x01010101));
}
BATON_INLINE U8x64 SpreadBytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {SpreadEight(bytes), SpreadEight(_mm_srli_si128(bytes, 8))};
}
#if defined(__AVXVNNI__)
constexpr int kByteOffset = 0;
BATON_INLINE I32x16 DotBytes(I32x16 sum, U8x64 w, int32_t x) {
  const __m256i all = _mm256_set1_epi32(x);
  return {_mm256_dpbusd_avx_epi32(sum.lo, w.lo, all), _mm256_dpbusd_avx_epi32(sum.hi, w.hi, all)};
}
#else
#define BATON_SUMS_OF_16_BITS
using I16x32 = U8x64;
BATON_INLINE I32x16 SumOf(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
BATON_INLINE I16x32 SumPairs(I16x32 a, I16x32 b) {
  return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)};
}
BATON_INLINE I32x16 Widen(I16x32 pairs) {
  const __m256i one = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(pairs.lo, one), _mm256_madd_epi16(pairs.hi, one)};
}
BATON_INLINE I16x32 DotPairs(U8x64 w, int32_t x) {
  const __m256i all = _mm256_set1_epi32(x);
  return {_mm256_maddubs_epi16(w.lo, all), _mm256_maddubs_epi16(w.hi, all)};
}
// Two products of 255 and 127 do not fit into 16 bits: bytes from -128 to 127, the sign moved to x.
constexpr int kByteOffset = 128;
BATON_INLINE I32x16 DotBytes(I32x16 sum, U8x64 w, int32_t x) {
  const __m256i all = _mm256_set1_epi32(x), top = _mm256_set1_epi8(-128);
  const U8x64 value = {_mm256_xor_si256(w.lo, top), _mm256_xor_si256(w.hi, top)};
  return SumOf(
      sum,
      Widen({_mm256_maddubs_epi16(_mm256_abs_epi8(value.lo), _mm256_sign_epi8(all, value.lo)),
             _mm256_maddubs_epi16(_mm256_abs_epi8(value.hi), _mm256_sign_epi8(all, value.hi))}));
}
// Products of many rows are in quantized_words.h.
#define BATON_WORD_TILES
#endif

BATON_INLINE uint32_t LargestBits(F32x16 a, F32x16 b) {
  const __m256i rest = _mm256_set1_epi32(0x7fffffff);
  const auto magnitude = [&](__m256 v) { return _mm256_and_si256(_mm256_castps_si256(v), rest); };
  const __m256i most = _mm256_max_epi32(_mm256_max_epi32(magnitude(a.lo), magnitude(a.hi)),
                                        _mm256_max_epi32(magnitude(b.lo), magnitude(b.hi)));
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(four));
}
BATON_INLINE int32_t SumOf(__m256i a, __m256i b) {
  const __m256i eight = _mm256_add_epi32(a, b);
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_cvtsi128_si32(four);
}
BATON_INLINE void StoreWhole(F32x16 a, F32x16 b, int8_t* values, int32_t sums[2]) {
  const __m256i parts[] = {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi),
                           _mm256_cvtps_epi32(b.lo), _mm256_cvtps_epi32(b.hi)};
  const __m256i first = _mm256_packs_epi32(parts[0], parts[1]);
  const __m256i second = _mm256_packs_epi32(parts[2], parts[3]);
  // Packing works within halves of a register: 4 values of each part, then 4 more.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
  _mm256_storeu_si256((__m256i*)values, bytes);
  sums[0] = SumOf(parts[0], parts[1]);
  sums[1] = SumOf(parts[2], parts[3]);
}

#else

constexpr int kQuantizedTileRows = 2, kQuantizedTileVectors = 1;
constexpr int kWideTileRows = 0, kWideBytesRows = 0;

struct I32x16 {
  int32_t v[16];
};
struct U8x64 {
  uint8_t v[64];
};
BATON_INLINE I32x16 Fill(int32_t x) {
  I32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = x;
  return r;
}
BATON_INLINE F32x16 ToFloat(I32x16 a) {
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(a.v[i]);
  return r;
}
BATON_INLINE U8x64 LoadBytes(const uint8_t* p) {
  U8x64 r;
  std::memcpy(r.v, p, sizeof(r.v));
  return r;
}
BATON_INLINE void StoreBytes(U8x64 a, uint8_t* p) { std::memcpy(p, a.v, sizeof(a.v)); }
BATON_INLINE U8x64 LowNibbles(U8x64 a) {
  for (int i = 0; i < 64; ++i) a.v[i] &= 15;
  return a;
}
BATON_INLINE U8x64 HighNibbles(U8x64 a) {
  for (int i = 0; i < 64; ++i) a.v[i] >>= 4;
  return a;
}
BATON_INLINE U8x64 AddBytes(U8x64 a, U8x64 b) {
  for (int i = 0; i < 64; ++i) a.v[i] = static_cast<uint8_t>(a.v[i] + b.v[i]);
  return a;
}
template <int kShift>
BATON_INLINE U8x64 OrShifted(U8x64 a, U8x64 b, int mask) {
  for (int i = 0; i < 64; ++i) {
    const int shifted = kShift >= 0 ? b.v[i] << (kShift & 7) : b.v[i] >> (-kShift & 7);
    a.v[i] = static_cast<uint8_t>(a.v[i] | (shifted & mask));
  }
  return a;
}
BATON_INLINE F32x16 LoadI8(const uint8_t* p) {
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(static_cast<int8_t>(p[i]));
  return r;
}
BATON_INLINE F32x16 LoadExponents(const uint8_t* p) {
  F32x16 r;
  for (int i = 0; i < 16; ++i) r.v[i] = BitsToFloat(static_cast<uint32_t>(p[i]) << 23);
  return r;
}
BATON_INLINE U8x64 Fp4Bytes(U8x64 codes) {
  for (int i = 0; i < 64; ++i) codes.v[i] = kFp4Values[codes.v[i]];
  return codes;
}
BATON_INLINE U8x64 SpreadBytes(const uint8_t* p) {
  U8x64 r;
  for (int i = 0; i < 64; ++i) r.v[i] = p[i / 4];
  return r;
}
constexpr int kByteOffset = 0;
BATON_INLINE I32x16 DotBytes(I32x16 sum, U8x64 w, int32_t x) {
  int8_t four[4];
  std::memcpy(four, &x, sizeof(four));
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 4; ++k) sum.v[i] += int{w.v[4 * i + k]} * four[k];
  }
  return sum;
}

BATON_INLINE uint32_t LargestBits(F32x16 a, F32x16 b) {
  uint32_t most = 0;
  for (int i = 0; i < 16; ++i) {
    const uint32_t x = FloatToBits(a.v[i]) & 0x7fffffff, y = FloatToBits(b.v[i]) & 0x7fffffff;
    most = most > x ? most : x;
    most = most > y ? most : y;
  }
  return most;
}
BATON_INLINE void StoreWhole(F32x16 a, F32x16 b, int8_t* values, int32_t sums[2]) {
  a = Round(a);
  b = Round(b);
  sums[0] = sums[1] = 0;
  for (int i = 0; i < 16; ++i) {
    values[i] = static_cast<int8_t>(a.v[i]);
    values[16 + i] = static_cast<int8_t>(b.v[i]);
    sums[0] += values[i];
    sums[1] += values[16 + i];
  }
}

#endif

#if defined(BATON_SUMS_OF_16_BITS)
constexpr bool kFourBitTiles = true;
// Two products of 127 and the largest byte are one 16-bit number. As many of them as fit are added
// up before they become 32-bit ones.
template <int kBits>
constexpr int kDotsAtOnce = 32767 / (2 * 127 * ((1 << kBits) - 1));
// Makes the compiler compute `a` here. GCC 12 would first compute all products of a block, which do
// not fit into the registers, and then add them up.
#if defined(__AVX512F__)
BATON_INLINE void Pin(I16x32& a) { asm("" : "+v"(a)); }
BATON_INLINE void Pin(I32x16& a) { asm("" : "+v"(a.v)); }
#else
BATON_INLINE void Pin(I16x32& a) { asm("" : "+x"(a.lo), "+x"(a.hi)); }
BATON_INLINE void Pin(I32x16& a) { asm("" : "+x"(a.lo), "+x"(a.hi)); }
#endif
struct DotSum {
  BATON_INLINE void Start(int32_t at) { start = at; }
  template <int kDot>
  BATON_INLINE void AddBytes(U8x64 w, int32_t x) {
    sum = DotBytes(kDot == 0 ? Fill(0) : sum, w, x);
    Pin(sum);
  }
  template <int kBits, int kDot, int kDots>
  BATON_INLINE void Add(U8x64 w, int32_t x) {
    constexpr int kAtOnce = kDotsAtOnce<kBits> < kDots ? kDotsAtOnce<kBits> : kDots;
    if constexpr (kDot % kAtOnce == 0) {
      pairs = DotPairs(w, x);
    } else {
      pairs = SumPairs(pairs, DotPairs(w, x));
    }
    Pin(pairs);
    if constexpr (kDot % kAtOnce == kAtOnce - 1) {
      if constexpr (kDot < kAtOnce) {
        sum = Widen(pairs);
      } else {
        sum = SumOf(sum, Widen(pairs));
      }
    }
  }
  BATON_INLINE I32x16 Sum() const { return SumOf(sum, Fill(start)); }
  int32_t start;
  I32x16 sum;
  I16x32 pairs;
};
#else
constexpr bool kFourBitTiles = false;
struct DotSum {
  BATON_INLINE void Start(int32_t at) { sum = Fill(at); }
  template <int kDot>
  BATON_INLINE void AddBytes(U8x64 w, int32_t x) {
    sum = DotBytes(sum, w, x);
  }
  template <int kBits, int kDot, int kDots>
  BATON_INLINE void Add(U8x64 w, int32_t x) {
    sum = DotBytes(sum, w, x);
  }
  BATON_INLINE I32x16 Sum() const { return sum; }
  I32x16 sum;
};
#endif

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_QUANTIZED_SIMD_H_
