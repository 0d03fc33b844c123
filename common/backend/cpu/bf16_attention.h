// What attention over a bfloat16 or quantised pool needs on every CPU with AVX-512 BF16: packed
// queries, softmax weights and values as pairs, and prefetches. For kernels_*.cc only, for the
// reason in simd16.h.
//
// A column is one (query token, query head) pair of the tile's KV head; see AttentionTile. Scores
// are [token][column]: a decode step reads every byte of K once for all columns. For the values,
// weights are transposed to [column][token] and V's tokens are paired up. Codes are dequantised and
// rounded to bfloat16 before they are multiplied.
#ifndef BATON_COMMON_BACKEND_CPU_BF16_ATTENTION_H_
#define BATON_COMMON_BACKEND_CPU_BF16_ATTENTION_H_

#include "common/backend/cpu/attention_kernels.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/kv_codes.h"

namespace baton::backend {
namespace {

constexpr int kPairTile = 16 * 32;  // elements: 16 pairs of tokens, of 16 dimensions

// Transposes in place: swaps lane j of rows[i] with lane i of rows[j].
BATON_INLINE void Transpose16(__m512i rows[16]) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
    b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
    b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
    b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
  }
  // b[4g + j] holds, in 128-bit lane l, lane 4l + j of rows 4g .. 4g + 3.
  for (int j = 0; j < 4; ++j) {
    const __m512i low01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0x88);
    const __m512i low23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0x88);
    const __m512i high01 = _mm512_shuffle_i32x4(b[j], b[4 + j], 0xdd);
    const __m512i high23 = _mm512_shuffle_i32x4(b[8 + j], b[12 + j], 0xdd);
    rows[j] = _mm512_shuffle_i32x4(low01, low23, 0x88);
    rows[4 + j] = _mm512_shuffle_i32x4(high01, high23, 0x88);
    rows[8 + j] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
    rows[12 + j] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
  }
}

// Size of the packed queries, bfloat16 [columns / 16][dimension / 2][column % 16][dimension % 2].
int64_t BF16QueryBytes(int head_dim) { return int64_t{head_dim} * kTileColumns * 2; }

// Scales q by log2(e) as well as `scale`, so that the softmax can use 2^x.
void PackQueryBF16(const float* const* q, int columns, int head_dim, float scale, void* packed) {
  uint16_t* out = static_cast<uint16_t*>(packed);
  const F32x16 factor = Set1(scale * 1.44269504f);
  for (int first = 0; first < columns; first += 16, out += head_dim * 16) {
    for (int i = 0; i < head_dim; i += 32) {
      __m512i rows[16];
      for (int c = 0; c < 16; ++c) {
        rows[c] = _mm512_setzero_si512();
        if (first + c >= columns) continue;
        const float* from = q[first + c] + i;
        const __m256i low = RoundToBF16(Mul(Load(from), factor));
        const __m256i high = RoundToBF16(Mul(Load(from + 16), factor));
        rows[c] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
      }
      Transpose16(rows);
      for (int pair = 0; pair < 16; ++pair) {
        _mm512_store_si512(out + i * 16 + pair * 32, rows[pair]);
      }
    }
  }
}

// Size of the scratch memory: float scores [columns / 16][token][column % 16], bfloat16 weights
// [column][token], and V as tiles of 32 tokens (16 pairs) x 16 dimensions, whose place dequantised
// K has before.
int64_t BF16ScratchBytes(int head_dim) {
  return int64_t{kSplitTokens} * kTileColumns * (4 + 2) + int64_t{kSplitTokens} * head_dim * 2;
}

// Where a token of the split lies. block_tokens divides 256, so it is a power of two.
struct TokenPlace {
  int block, in_block;
};

BATON_INLINE TokenPlace PlaceOf(const AttentionTile& tile, int t) {
  return {t >> __builtin_ctz(static_cast<unsigned>(tile.block_tokens)),
          t & (tile.block_tokens - 1)};
}

BATON_INLINE const uint8_t* TokenRow(const AttentionTile& tile, const void* const* blocks, int t) {
  const TokenPlace place = PlaceOf(tile, t);
  return static_cast<const uint8_t*>(blocks[place.block]) + place.in_block * tile.row_bytes;
}

BATON_INLINE ScaleAndZero TokenScaleAndZero(const AttentionTile& tile, const void* const* blocks,
                                            int t) {
  const TokenPlace place = PlaceOf(tile, t);
  const uint8_t* head = static_cast<const uint8_t*>(blocks[place.block]);
  return LoadScaleAndZero(
      reinterpret_cast<const uint16_t*>(head + tile.block_tokens * tile.row_bytes) +
      2 * place.in_block);
}

// Elements [i, i + 32) of a row, as bfloat16. `by` counts only for codes.
template <Codes kCodes>
BATON_INLINE __m512i LoadAsBF16(const uint8_t* row, ScaleAndZero by, int i) {
  if constexpr (kCodes == Codes::kPlain) {
    return _mm512_loadu_si512(row + 2 * i);
  } else {
    const F32x16 low = Fma(LoadCodes<kCodes>(row, i), by.scale, by.zero);
    const F32x16 high = Fma(LoadCodes<kCodes>(row, i + 16), by.scale, by.zero);
    return (__m512i)_mm512_cvtne2ps_pbh(high.v, low.v);
  }
}

template <Codes kCodes>
BATON_INLINE ScaleAndZero ScaleAndZeroIfCodes(const AttentionTile& tile, const void* const* blocks,
                                              int t) {
  if constexpr (kCodes == Codes::kPlain) return {Zero(), Zero()};
  return TokenScaleAndZero(tile, blocks, t);
}

// 16 tokens' rows, and their scales and zeros.
template <Codes kCodes, _mm_hint kHint>
BATON_INLINE void PrefetchTokens(const AttentionTile& tile, const void* const* blocks, int t) {
  const uint8_t* rows = TokenRow(tile, blocks, t);
  for (int64_t i = 0; i < 16 * tile.row_bytes; i += 64) _mm_prefetch(rows + i, kHint);
  if constexpr (kCodes != Codes::kPlain) {
    const int in_block = PlaceOf(tile, t).in_block;
    _mm_prefetch(rows + (tile.block_tokens - in_block) * tile.row_bytes + 4 * in_block, kHint);
  }
}

// Prefetches K of 16 tokens of the next split, so that it need not wait.
template <Codes kCodes>
BATON_INLINE void PrefetchNext(const AttentionTile& tile, int token) {
  if (PlaceOf(tile, token).block >= tile.next_block_count) return;
  PrefetchTokens<kCodes, _MM_HINT_T1>(tile, tile.next_k_blocks, token);
}

template <Codes kCodes>
BATON_INLINE void DequantizeKeys(const AttentionTile& tile, int begin, uint16_t* out) {
  for (int t = 0; t < 16; ++t, out += tile.head_dim) {
    const uint8_t* row = TokenRow(tile, tile.k_blocks, begin + t);
    const ScaleAndZero by = TokenScaleAndZero(tile, tile.k_blocks, begin + t);
    for (int i = 0; i < tile.head_dim; i += 32) {
      _mm512_store_si512(out + i, LoadAsBF16<kCodes>(row, by, i));
    }
  }
}

// 2^x for x <= 0, relative error 8e-6, well under bfloat16's. Exactly 1 at 0; 0 for very negative
// x. The clamp keeps -inf from becoming a NaN.
BATON_INLINE __m512 PowerOfTwoOf(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-300.0f), x);
  const __m512 r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // [0, 1)
  __m512 p = _mm512_set1_ps(1.27631139e-2f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.34410293e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.40647048e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.93133993e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);  // p * 2^floor(x)
}

// Turns the masked scores [token][16] of sixteen columns, from `column` on, into bfloat16 weights,
// pair by pair: take(t, pairs) gets sixteen times (weight of token t, of token t + 1). Adds the
// weights up in the same order as SoftmaxColumns.
template <class Take>
BATON_INLINE void WeighPairs(const AttentionTile& tile, int column, Seen seen, int begin, int end,
                             float* scores, Take take) {
  const F32x16 max = MaskAndMax(tile, column, seen, begin, end, scores);
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  F32x16 sum0 = Zero(), sum1 = Zero(), sum2 = Zero(), sum3 = Zero();
  const auto pair = [&](int t, F32x16& even_sum, F32x16& odd_sum) {
    const F32x16 even = {PowerOfTwoOf(Sub(Load(scores + t * 16), max).v)};
    const F32x16 odd = {PowerOfTwoOf(Sub(Load(scores + t * 16 + 16), max).v)};
    even_sum = Add(even_sum, even);
    odd_sum = Add(odd_sum, odd);
    take(t, _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(odd.v, even.v)));
  };
  for (int t = begin; t < end; t += 4) {
    pair(t, sum0, sum1);
    pair(t + 2, sum2, sum3);
  }
  Store(Mul(max, Set1(0.693147181f)), tile.result.max + column);
  Store(Add(Add(sum0, sum1), Add(sum2, sum3)), tile.result.sum + column);
}

// Tokens of the split to compute, rounded by position in it, so that the result does not depend on
// the batch: to 32 for weights and values, to 16, the least of a block, for scores.
struct TokenRange {
  int begin, end, end_of_blocks;
};

BATON_INLINE TokenRange TokensToCompute(const AttentionTile& tile, Seen seen) {
  const int last = seen.end_any < tile.tokens ? seen.end_any : tile.tokens;
  return {seen.first_any / 32 * 32, (last + 31) / 32 * 32, (last + 15) / 16 * 16};
}

// Writes V of tokens [begin, end) as pairs of tokens; zeros from tile.tokens on, where the block
// may hold anything.
template <Codes kCodes>
BATON_INLINE void PairValues(const AttentionTile& tile, int begin, int end, uint16_t* pairs) {
  const int d = tile.head_dim;
  // Indexes that take element 2i from `even` and 2i + 1 from `odd`, written as one 32-bit lane per
  // pair: i | (32 + i) << 16.
  const __m512i low = _mm512_set_epi32(0x2f000f, 0x2e000e, 0x2d000d, 0x2c000c, 0x2b000b, 0x2a000a,
                                       0x290009, 0x280008, 0x270007, 0x260006, 0x250005, 0x240004,
                                       0x230003, 0x220002, 0x210001, 0x200000);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(0x100010));
  for (int t = begin; t < end; t += 2) {
    const bool has_even = t < tile.tokens, has_odd = t + 1 < tile.tokens;
    const uint8_t* even = nullptr;
    ScaleAndZero even_by = {Zero(), Zero()}, odd_by = even_by;
    if (has_even) {
      even = TokenRow(tile, tile.v_blocks, t);
      even_by = ScaleAndZeroIfCodes<kCodes>(tile, tile.v_blocks, t);
    }
    if (has_odd) odd_by = ScaleAndZeroIfCodes<kCodes>(tile, tile.v_blocks, t + 1);
    uint16_t* to = pairs + t / 32 * 32 * d + t % 32 / 2 * 32;
    for (int i = 0; i < d; i += 32, to += 2 * kPairTile) {
      const __m512i a = has_even ? LoadAsBF16<kCodes>(even, even_by, i) : _mm512_setzero_si512();
      const __m512i b =
          has_odd ? LoadAsBF16<kCodes>(even + tile.row_bytes, odd_by, i) : _mm512_setzero_si512();
      _mm512_store_si512(to, _mm512_permutex2var_epi16(a, low, b));
      _mm512_store_si512(to + kPairTile, _mm512_permutex2var_epi16(a, high, b));
    }
  }
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_BF16_ATTENTION_H_
