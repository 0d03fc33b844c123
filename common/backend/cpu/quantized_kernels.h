// Products of 8-bit activations and weights of 4 or 8 bits. For kernels_*.cc only; see simd16.h.
//
// The sum over a block of 32 columns is a whole number below 2^24, exact on every instruction set
// and in every order. Only the sum over the blocks rounds: one chain of additions in the order of
// the blocks. So the bits of an element depend on neither the rows of a call nor, where multiply
// and add are fused, the instruction set.
#ifndef BATON_COMMON_BACKEND_CPU_QUANTIZED_KERNELS_H_
#define BATON_COMMON_BACKEND_CPU_QUANTIZED_KERNELS_H_

#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/simd16.h"
#include "common/backend/cpu/vector_kernels.h"

namespace baton::backend {
namespace {

// I32x16: sixteen sums. U8x64: four unsigned bytes for each. Dot adds the products of the bytes
// with the four signed bytes of x. Its bytes are at most 31 (Dot) or any (DotBytes), less
// kByteOffset.
#if defined(__AVX512F__)

constexpr int kQuantizedTileRows = 6;
constexpr int kQuantizedTileVectors = 2;

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
// A byte for each of sixteen columns, four times.
BATON_INLINE U8x64 SpreadBytes(const uint8_t* p) {
  const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  const __m512i twice = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 8));
  return _mm512_or_si512(twice, _mm512_slli_epi32(twice, 16));
}
#if defined(__AVX512VNNI__)
constexpr int kByteOffset = 0;
BATON_INLINE I32x16 Dot(I32x16 sum, U8x64 w, int32_t x) {
  return {_mm512_dpbusd_epi32(sum.v, w, _mm512_set1_epi32(x))};
}
BATON_INLINE I32x16 DotBytes(I32x16 sum, U8x64 w, int32_t x) { return Dot(sum, w, x); }
#else
BATON_INLINE I32x16 AddPairs(I32x16 sum, __m512i pairs) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
BATON_INLINE I32x16 Dot(I32x16 sum, U8x64 w, int32_t x) {
  return AddPairs(sum, _mm512_maddubs_epi16(w, _mm512_set1_epi32(x)));
}
// Two products of 255 and 127 do not fit into 16 bits: bytes from -128 to 127, the sign moved to x.
constexpr int kByteOffset = 128;
BATON_INLINE I32x16 DotBytes(I32x16 sum, U8x64 w, int32_t x) {
  const __m512i value = _mm512_xor_si512(w, _mm512_set1_epi8(-128));
  const __m512i all = _mm512_set1_epi32(x);
  const __m512i turned =
      _mm512_mask_sub_epi8(all, _mm512_movepi8_mask(value), _mm512_setzero_si512(), all);
  return AddPairs(sum, _mm512_maddubs_epi16(_mm512_abs_epi8(value), turned));
}
#endif

// The largest magnitude as bits; NaN is above infinity.
BATON_INLINE uint32_t LargestBits(F32x16 a, F32x16 b) {
  const __m512i rest = _mm512_set1_epi32(0x7fffffff);
  return static_cast<uint32_t>(
      _mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a.v), rest),
                                               _mm512_and_si512(_mm512_castps_si512(b.v), rest))));
}
// Rounds to whole numbers of 8 bits; returns their sum.
BATON_INLINE int32_t StoreWhole(F32x16 a, F32x16 b, int8_t* values) {
  const __m512i low = _mm512_cvtps_epi32(a.v), high = _mm512_cvtps_epi32(b.v);
  _mm_storeu_si128((__m128i*)values, _mm512_cvtepi32_epi8(low));
  _mm_storeu_si128((__m128i*)(values + 16), _mm512_cvtepi32_epi8(high));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
}

#elif defined(__AVX2__)

constexpr int kQuantizedTileRows = 2;
constexpr int kQuantizedTileVectors = 1;

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
BATON_INLINE __m256i SpreadEight(__m128i bytes) {
  return _mm256_mullo_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(0x01010101));
}
BATON_INLINE U8x64 SpreadBytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return {SpreadEight(bytes), SpreadEight(_mm_srli_si128(bytes, 8))};
}
BATON_INLINE __m256i AddPairs(__m256i sum, __m256i pairs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
BATON_INLINE I32x16 Dot(I32x16 sum, U8x64 w, int32_t x) {
  const __m256i all = _mm256_set1_epi32(x);
  return {AddPairs(sum.lo, _mm256_maddubs_epi16(w.lo, all)),
          AddPairs(sum.hi, _mm256_maddubs_epi16(w.hi, all))};
}
// Two products of 255 and 127 do not fit into 16 bits: bytes from -128 to 127, the sign moved to x.
constexpr int kByteOffset = 128;
BATON_INLINE __m256i DotBytes(__m256i sum, __m256i w, __m256i x) {
  const __m256i value = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
  return AddPairs(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(value), _mm256_sign_epi8(x, value)));
}
BATON_INLINE I32x16 DotBytes(I32x16 sum, U8x64 w, int32_t x) {
  const __m256i all = _mm256_set1_epi32(x);
  return {DotBytes(sum.lo, w.lo, all), DotBytes(sum.hi, w.hi, all)};
}

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
BATON_INLINE int32_t StoreWhole(F32x16 a, F32x16 b, int8_t* values) {
  const __m256i parts[] = {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi),
                           _mm256_cvtps_epi32(b.lo), _mm256_cvtps_epi32(b.hi)};
  const __m256i first = _mm256_packs_epi32(parts[0], parts[1]);
  const __m256i second = _mm256_packs_epi32(parts[2], parts[3]);
  // Packing works within halves of a register: 4 values of each part, then 4 more.
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
  _mm256_storeu_si256((__m256i*)values, bytes);
  const __m256i eight =
      _mm256_add_epi32(_mm256_add_epi32(parts[0], parts[1]), _mm256_add_epi32(parts[2], parts[3]));
  __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
  return _mm_cvtsi128_si32(four);
}

#else

constexpr int kQuantizedTileRows = 4;
constexpr int kQuantizedTileVectors = 1;

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
BATON_INLINE U8x64 SpreadBytes(const uint8_t* p) {
  U8x64 r;
  for (int i = 0; i < 64; ++i) r.v[i] = p[i / 4];
  return r;
}
constexpr int kByteOffset = 0;
BATON_INLINE I32x16 Dot(I32x16 sum, U8x64 w, int32_t x) {
  int8_t four[4];
  std::memcpy(four, &x, sizeof(four));
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < 4; ++k) sum.v[i] += int{w.v[4 * i + k]} * four[k];
  }
  return sum;
}
BATON_INLINE I32x16 DotBytes(I32x16 sum, U8x64 w, int32_t x) { return Dot(sum, w, x); }

BATON_INLINE uint32_t LargestBits(F32x16 a, F32x16 b) {
  uint32_t most = 0;
  for (int i = 0; i < 16; ++i) {
    const uint32_t x = FloatToBits(a.v[i]) & 0x7fffffff, y = FloatToBits(b.v[i]) & 0x7fffffff;
    most = most > x ? most : x;
    most = most > y ? most : y;
  }
  return most;
}
BATON_INLINE int32_t StoreWhole(F32x16 a, F32x16 b, int8_t* values) {
  a = Round(a);
  b = Round(b);
  int32_t sum = 0;
  for (int i = 0; i < 16; ++i) {
    values[i] = static_cast<int8_t>(a.v[i]);
    values[16 + i] = static_cast<int8_t>(b.v[i]);
    sum += values[i] + values[16 + i];
  }
  return sum;
}

#endif

void RoundActivations(const void* x, Element element, int64_t n, ActivationBlock* blocks) {
  for (int64_t at = 0; at < n; at += kQuantizedBlock, ++blocks) {
    F32x16 a, b;
    if (n - at >= kQuantizedBlock) {
      a = LoadElements(x, element, at);
      b = LoadElements(x, element, at + 16);
    } else {
      const int rest = static_cast<int>(n - at);
      a = LoadElementsPart(x, element, at, rest < 16 ? rest : 16);
      b = rest > 16 ? LoadElementsPart(x, element, at + 16, rest - 16) : Zero();
    }
    const float largest = BitsToFloat(LargestBits(a, b));
    // Also false for NaN. Below the least, 127 / largest would overflow.
    constexpr float kLeast = 1e-30f, kMost = 3e38f;
    if (!(largest >= kLeast && largest <= kMost)) {
      blocks->scale = largest < kLeast ? 0.0f : BitsToFloat(0x7fc00000);
      blocks->sum = 0;
      std::memset(blocks->values, 0, sizeof(blocks->values));
      continue;
    }
    blocks->scale = largest / 127.0f;
    const F32x16 inverse = Set1(127.0f / largest);
    blocks->sum = StoreWhole(Mul(a, inverse), Mul(b, inverse), blocks->values);
  }
}

// What a tile reads. kUnpacked: nibbles that were made bytes for the rows of several tiles, less
// their zeros, with a header of scales alone.
enum class Packing { kBytes, kNibbles, kNibblesAndZeros, kUnpacked };

constexpr int64_t HeaderBytes(Packing packing) {
  return packing == Packing::kNibblesAndZeros ? 2 * kQuantizedScaleBytes : kQuantizedScaleBytes;
}
constexpr int64_t BlockBytes(Packing packing) {
  const bool bytes = packing == Packing::kBytes || packing == Packing::kUnpacked;
  return kQuantizedBlock * kPanelColumns / (bytes ? 1 : 2);
}
constexpr int ZeroOf(Packing packing) {
  if (packing == Packing::kBytes) return 128 - kByteOffset;
  return packing == Packing::kNibblesAndZeros ? 16 : 8;
}

// Of a tile: blocks [begin, end) of the panel, begin and end on borders of groups.
struct QuantizedRange {
  int64_t begin, end;
  int64_t group_blocks;
  int64_t block_count;  // of a row
  Element scale_element;
  int columns;       // of this tile
  int first_vector;  // of this tile in the panel
  int zero;
};

// How far ahead of the product weights are asked for.
constexpr int64_t kPrefetchBytes = 4096;
// Rows that stay in the second-level cache beside a panel's pass.
constexpr int64_t kQuantizedRowBlock = 240;

template <Packing kPacking, int kRows, int kVectors>
void MulQuantizedTile(const ActivationBlock* x, int64_t x_stride, const uint8_t* w,
                      const float* bias, float* out, int64_t out_stride,
                      const QuantizedRange& range) {
  constexpr bool kZeros = kPacking == Packing::kNibblesAndZeros;
  constexpr bool kHalves = kZeros || kPacking == Packing::kNibbles;
  constexpr int kSteps = BlockBytes(kPacking) / 128;
  F32x16 total[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      total[r][v] =
          range.begin == 0 ? Zero() : LoadColumns(out + r * out_stride, v * 16, range.columns);
    }
  }
  x += range.begin;
  for (int64_t group = range.begin; group < range.end; group += range.group_blocks) {
    F32x16 scale[kVectors];
    U8x64 zero[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int at = (range.first_vector + v) * 16;
      scale[v] = LoadElements(w, range.scale_element, at);
      if constexpr (kZeros) zero[v] = SpreadBytes(w + kQuantizedScaleBytes + at);
    }
    w += HeaderBytes(kPacking);
    const int64_t end =
        group + range.group_blocks < range.end ? group + range.group_blocks : range.end;
    for (int64_t block = group; block < end; ++block, ++x) {
      I32x16 sum[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Fill(-range.zero * x[r * x_stride].sum);
      }
      for (int step = 0; step < kSteps; ++step, w += 128) {
        for (int v = 0; v < kVectors; ++v) {
          const uint8_t* at = w + (range.first_vector + v) * 64;
          if constexpr (kPacking != Packing::kUnpacked) __builtin_prefetch(at + kPrefetchBytes);
          const U8x64 bytes = LoadBytes(at);
          if constexpr (!kHalves) {
            for (int r = 0; r < kRows; ++r) {
              int32_t four;
              std::memcpy(&four, x[r * x_stride].values + 4 * step, sizeof(four));
              sum[r][v] = kPacking == Packing::kBytes ? DotBytes(sum[r][v], bytes, four)
                                                      : Dot(sum[r][v], bytes, four);
            }
          } else {
            U8x64 low = LowNibbles(bytes), high = HighNibbles(bytes);
            if constexpr (kZeros) {
              low = AddBytes(low, zero[v]);
              high = AddBytes(high, zero[v]);
            }
            for (int r = 0; r < kRows; ++r) {
              int32_t four[2];
              std::memcpy(four, x[r * x_stride].values + 8 * step, sizeof(four));
              sum[r][v] = Dot(Dot(sum[r][v], low, four[0]), high, four[1]);
            }
          }
        }
      }
      for (int r = 0; r < kRows; ++r) {
        const F32x16 x_scale = Set1(x[r * x_stride].scale);
        for (int v = 0; v < kVectors; ++v) {
          total[r][v] = Fma(Mul(ToFloat(sum[r][v]), x_scale), scale[v], total[r][v]);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      if (range.end == range.block_count && bias != nullptr) {
        total[r][v] = Add(total[r][v], LoadColumns(bias, v * 16, range.columns));
      }
      StoreColumns(total[r][v], out + r * out_stride, v * 16, range.columns);
    }
  }
}

template <Packing kPacking, int kRows>
BATON_INLINE void MulQuantizedRows(int64_t rows, const ActivationBlock* x, int64_t x_stride,
                                   const uint8_t* w, const float* bias, float* out,
                                   int64_t out_stride, const QuantizedRange& range) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return MulQuantizedRows<kPacking, kRows - 1>(rows, x, x_stride, w, bias, out, out_stride,
                                                   range);
    }
  }
  MulQuantizedTile<kPacking, kRows, kQuantizedTileVectors>(x, x_stride, w, bias, out, out_stride,
                                                           range);
}

// One pass of a panel, whose first column is `column` of the slice, for rows [first, first + rows).
template <Packing kPacking>
void MulQuantizedPass(const QuantizedSlice& s, const uint8_t* w, int64_t column, int64_t first,
                      int64_t rows, QuantizedRange range) {
  // Tiles of nearly equal heights: 8 rows are 4 and 4, not 6 and 2.
  const int64_t tiles = (rows + kQuantizedTileRows - 1) / kQuantizedTileRows;
  const int64_t height = (rows + tiles - 1) / tiles;
  for (int v = 0; v < kPanelColumns / 16; v += kQuantizedTileVectors) {
    const int64_t at = column + v * 16;
    if (at >= s.columns) break;
    const int64_t columns = s.columns - at;
    constexpr int kMost = 16 * kQuantizedTileVectors;
    range.columns = columns < kMost ? static_cast<int>(columns) : kMost;
    range.first_vector = v;
    for (int64_t row = 0; row < rows; row += height) {
      MulQuantizedRows<kPacking, kQuantizedTileRows>(
          rows - row < height ? rows - row : height, s.x + (first + row) * s.blocks, s.blocks, w,
          s.bias == nullptr ? nullptr : s.bias + at, s.out + (first + row) * s.out_stride + at,
          s.out_stride, range);
    }
  }
}

// What stays in the first-level cache while all rows pass by.
constexpr int64_t kPassBlocks = 8;

// A pass of nibbles as one of kUnpacked.
template <Packing kPacking>
void Unpack(const uint8_t* w, const QuantizedRange& range, uint8_t* out) {
  for (int64_t group = range.begin; group < range.end; group += range.group_blocks) {
    std::memcpy(out, w, kQuantizedScaleBytes);
    U8x64 zero[2];
    if constexpr (kPacking == Packing::kNibblesAndZeros) {
      for (int v = 0; v < 2; ++v) zero[v] = SpreadBytes(w + kQuantizedScaleBytes + v * 16);
    }
    w += HeaderBytes(kPacking);
    out += HeaderBytes(Packing::kUnpacked);
    const int64_t end =
        group + range.group_blocks < range.end ? group + range.group_blocks : range.end;
    for (int64_t pair = 0; pair < (end - group) * 4; ++pair, w += 128, out += 256) {
      for (int v = 0; v < 2; ++v) {
        __builtin_prefetch(w + kPrefetchBytes + v * 64);
        const U8x64 bytes = LoadBytes(w + v * 64);
        U8x64 low = LowNibbles(bytes), high = HighNibbles(bytes);
        if constexpr (kPacking == Packing::kNibblesAndZeros) {
          low = AddBytes(low, zero[v]);
          high = AddBytes(high, zero[v]);
        }
        StoreBytes(low, out + v * 64);
        StoreBytes(high, out + 128 + v * 64);
      }
    }
  }
}

template <Packing kPacking>
void MulQuantizedSlice(const QuantizedSlice& s) {
  const bool few_rows = s.rows <= kQuantizedTileRows;
  const bool small_groups = s.group_blocks <= kPassBlocks;
  // Few rows: one pass over the weights in memory order.
  int64_t blocks_a_pass = s.blocks;
  if (!few_rows) {
    blocks_a_pass = small_groups ? kPassBlocks / s.group_blocks * s.group_blocks : s.group_blocks;
  }
  for (int64_t first = 0; first < s.rows; first += kQuantizedRowBlock) {
    const int64_t rows = s.rows - first < kQuantizedRowBlock ? s.rows - first : kQuantizedRowBlock;
    for (int64_t column = 0; column < s.columns; column += kPanelColumns) {
      const uint8_t* panel = s.panels + column / kPanelColumns * s.panel_bytes;
      for (int64_t begin = 0; begin < s.blocks; begin += blocks_a_pass) {
        const uint8_t* w =
            panel + begin * BlockBytes(kPacking) + begin / s.group_blocks * HeaderBytes(kPacking);
        const int64_t left = s.blocks - begin;
        const QuantizedRange range = {.begin = begin,
                                      .end = begin + (left < blocks_a_pass ? left : blocks_a_pass),
                                      .group_blocks = s.group_blocks,
                                      .block_count = s.blocks,
                                      .scale_element = s.scale_element,
                                      .columns = 0,
                                      .first_vector = 0,
                                      .zero = ZeroOf(kPacking)};
        if constexpr (kPacking != Packing::kBytes) {
          // Once for all tiles of rows. For two tiles it gains nothing.
          if (s.rows > 2 * kQuantizedTileRows && small_groups) {
            alignas(64) uint8_t unpacked[kPassBlocks * (BlockBytes(Packing::kUnpacked) +
                                                        HeaderBytes(Packing::kUnpacked))];
            Unpack<kPacking>(w, range, unpacked);
            MulQuantizedPass<Packing::kUnpacked>(s, unpacked, column, first, rows, range);
            continue;
          }
        }
        MulQuantizedPass<kPacking>(s, w, column, first, rows, range);
      }
    }
  }
}

void MatMulQuantized(const QuantizedSlice& slice) {
  if (slice.bits == 8) return MulQuantizedSlice<Packing::kBytes>(slice);
  if (slice.zeros) return MulQuantizedSlice<Packing::kNibblesAndZeros>(slice);
  return MulQuantizedSlice<Packing::kNibbles>(slice);
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_QUANTIZED_KERNELS_H_
