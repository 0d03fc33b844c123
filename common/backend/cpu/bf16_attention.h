// What attention over a bfloat16 or quantised pool needs on every CPU with AVX-512 BF16. For
// kernels_*.cc only, for the reason in simd16.h.
//
// A column is one (query token, query head) pair of the tile's KV head; see AttentionTile. A decode
// step reads every byte of K once for all columns. For the values, V's tokens are paired up. Codes
// are dequantised and rounded to bfloat16 before they are multiplied.
#ifndef BATON_COMMON_BACKEND_CPU_BF16_ATTENTION_H_
#define BATON_COMMON_BACKEND_CPU_BF16_ATTENTION_H_

#include "common/backend/cpu/attention_kernels.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/kv_codes.h"

namespace baton::backend {
namespace {

constexpr int kPairTile = 16 * 32;  // elements: 16 pairs of tokens, of 16 dimensions

// Bytes of the packed queries: bfloat16, columns padded to a multiple of 16.
int64_t BF16QueryBytes(int head_dim) { return int64_t{head_dim} * kTileColumns * 2; }

// 32 elements of a query, times `factor`, as bfloat16.
BATON_INLINE __m512i LoadQuery(const float* from, F32x16 factor) {
  const __m256i low = RoundToBF16(Mul(Load(from), factor));
  const __m256i high = RoundToBF16(Mul(Load(from + 16), factor));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// Queries are scaled by this as well as by `scale`, so that the softmax can use 2^x.
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.693147181f;

// Bytes of the scratch memory: float scores and bfloat16 weights of every column and token, and V
// as tiles of 32 tokens (16 pairs) x 16 dimensions, whose place dequantised K has before.
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

// The rows of 16 tokens, whose scales and zeros it prefetches.
template <Codes kCodes, _mm_hint kHint>
BATON_INLINE const uint8_t* RowsAhead(const AttentionTile& tile, const void* const* blocks, int t) {
  const uint8_t* rows = TokenRow(tile, blocks, t);
  if constexpr (kCodes != Codes::kPlain) {
    const int in_block = PlaceOf(tile, t).in_block;
    _mm_prefetch(rows + (tile.block_tokens - in_block) * tile.row_bytes + 4 * in_block, kHint);
  }
  return rows;
}

// Prefetches 16 tokens at once.
template <Codes kCodes, _mm_hint kHint>
BATON_INLINE void PrefetchTokens(const AttentionTile& tile, const void* const* blocks, int t) {
  const uint8_t* rows = RowsAhead<kCodes, kHint>(tile, blocks, t);
  for (int64_t i = 0; i < 16 * tile.row_bytes; i += 64) _mm_prefetch(rows + i, kHint);
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
  const int d = tile.value_dim;
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
