// Attention over a bfloat16 or quantised pool with AMX. For kernels_amx.cc only, for the reason in
// simd16.h.
//
// K is the left operand, as stored in its block (16 tokens x 32 dimensions), and the queries are
// the right one.
#ifndef BATON_COMMON_BACKEND_CPU_AMX_ATTENTION_H_
#define BATON_COMMON_BACKEND_CPU_AMX_ATTENTION_H_

#include "common/backend/cpu/amx_tiles.h"
#include "common/backend/cpu/bf16_attention.h"

namespace baton::backend {
namespace {

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

// bfloat16 [columns / 16][dimension / 2][column % 16][dimension % 2]
void PackQueryAmx(const float* const* q, int columns, int head_dim, float scale, void* packed) {
  uint16_t* out = static_cast<uint16_t*>(packed);
  const F32x16 factor = Set1(scale * kLog2E);
  for (int first = 0; first < columns; first += 16, out += head_dim * 16) {
    for (int i = 0; i < head_dim; i += 32) {
      __m512i rows[16];
      for (int c = 0; c < 16; ++c) {
        rows[c] =
            first + c < columns ? LoadQuery(q[first + c] + i, factor) : _mm512_setzero_si512();
      }
      Transpose16(rows);
      for (int pair = 0; pair < 16; ++pair) {
        _mm512_store_si512(out + i * 16 + pair * 32, rows[pair]);
      }
    }
  }
}

// keys: scratch for codes.
template <Codes kCodes>
BATON_INLINE void ScoresAmx(const AttentionTile& tile, int vectors, int begin, int end,
                            float* scores, uint16_t* keys) {
  const int d = tile.head_dim;
  const uint16_t* query = static_cast<const uint16_t*>(tile.query);
  // Three rotating buffers, filled well ahead: tile loads get no store forwarding.
  const auto place = [&](int t) { return keys + t / 16 % 3 * 16 * d; };
  const auto dequantize = [&](int t) {
    if constexpr (kCodes != Codes::kPlain) {
      if (t < end) DequantizeKeys<kCodes>(tile, t, place(t));
    }
  };
  dequantize(begin);
  for (int t = begin; t < end; t += 16) {
    // Blocks are not contiguous, so the hardware prefetch stops at the end of each.
    if (t + 32 < end) {
      PrefetchTokens<kCodes, _MM_HINT_T0>(tile, tile.k_blocks, t + 32);
    }
    if (t < tile.tokens) {
      PrefetchTokens<kCodes, _MM_HINT_T1>(tile, tile.v_blocks, t);
    }
    dequantize(t + 16);
    const uint16_t* k = place(t);
    if constexpr (kCodes == Codes::kPlain) {
      k = reinterpret_cast<const uint16_t*>(TokenRow(tile, tile.k_blocks, t));
    }
    _tile_zero(0);
    if (vectors > 1) _tile_zero(1);
    if (vectors > 2) _tile_zero(2);
    if (vectors > 3) _tile_zero(3);
    for (int i = 0; i < d; i += 32) {
      const uint16_t* q = query + i * 16;
      _tile_loadd(4, k + i, d * 2);
      _tile_loadd(5, q, 64);
      _tile_dpbf16ps(0, 4, 5);
      if (vectors < 2) continue;
      _tile_loadd(6, q + 16 * d, 64);
      _tile_dpbf16ps(1, 4, 6);
      if (vectors < 3) continue;
      _tile_loadd(7, q + 32 * d, 64);
      _tile_dpbf16ps(2, 4, 7);
      if (vectors < 4) continue;
      _tile_loadd(5, q + 48 * d, 64);
      _tile_dpbf16ps(3, 4, 5);
    }
    float* to = scores + t * 16;
    _tile_stored(0, to, 64);
    if (vectors > 1) _tile_stored(1, to + kScoreVector, 64);
    if (vectors > 2) _tile_stored(2, to + 2 * kScoreVector, 64);
    if (vectors > 3) _tile_stored(3, to + 3 * kScoreVector, 64);
  }
}

// Masks the scores [token][16] of sixteen columns, from `column` on, and turns them into bfloat16
// weights [16][token]. Adds the weights up in the same order as SoftmaxColumns.
template <Codes kCodes>
BATON_INLINE void WeightsAmx(const AttentionTile& tile, int column, Seen seen, TokenRange range,
                             float* scores, uint16_t* weights) {
  const auto [begin, end, end_of_blocks] = range;
  for (int t = end_of_blocks; t < end; ++t) Store(Zero(), scores + t * 16);  // masked
  const F32x16 max = MaskAndMax<1>(tile, tile.score_cap * kLog2E, column, seen, begin, end, scores);
  const __m512i interleave =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                       21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  F32x16 sum0 = Zero(), sum1 = Zero(), sum2 = Zero(), sum3 = Zero();
  const auto pair = [&](const float* score, F32x16& even_sum, F32x16& odd_sum) {
    const F32x16 even = {PowerOfTwoOf(Sub(Load(score), max).v)};
    const F32x16 odd = {PowerOfTwoOf(Sub(Load(score + 16), max).v)};
    even_sum = Add(even_sum, even);
    odd_sum = Add(odd_sum, odd);
    return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(odd.v, even.v));
  };
  for (int t = begin; t < end; t += 32) {
    __m512i pairs[16];
    for (int i = 0; i < 16; i += 2) {
      pairs[i] = pair(scores + (t + 2 * i) * 16, sum0, sum1);
      pairs[i + 1] = pair(scores + (t + 2 * i + 2) * 16, sum2, sum3);
    }
    if (column == 0) PrefetchNext<kCodes>(tile, t / 2);
    Transpose16(pairs);
    for (int c = 0; c < 16; ++c) _mm512_store_si512(weights + c * kSplitTokens + t, pairs[c]);
  }
  Store(Mul(max, Set1(kLn2)), tile.result.max + column);
  Store(Add(Add(sum0, sum1), Add(sum2, sum3)), tile.result.sum + column);
}

template <int kTiles>
BATON_INLINE void ZeroSums() {
  _tile_zero(0);
  _tile_zero(1);
  if (kTiles == 4) {
    _tile_zero(2);
    _tile_zero(3);
  }
}

// Adds the weighted V of 32 tokens to the sums of 16 columns and kTiles * 16 dimensions.
template <int kTiles>
BATON_INLINE void AddValues(const uint16_t* weights, const uint16_t* v) {
  _tile_loadd(4, weights, kSplitTokens * 2);
  _tile_loadd(6, v, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, v + kPairTile, 64);
  _tile_dpbf16ps(1, 4, 7);
  if (kTiles == 4) {
    _tile_loadd(5, v + 2 * kPairTile, 64);
    _tile_dpbf16ps(2, 4, 5);
    _tile_loadd(6, v + 3 * kPairTile, 64);
    _tile_dpbf16ps(3, 4, 6);
  }
}

template <int kTiles>
BATON_INLINE void StoreValues(float* out, int64_t stride) {
  _tile_stored(0, out, stride * 4);
  _tile_stored(1, out + 16, stride * 4);
  if (kTiles == 4) {
    _tile_stored(2, out + 32, stride * 4);
    _tile_stored(3, out + 48, stride * 4);
  }
}

template <int kTiles>
BATON_INLINE void ValuesAmx(const uint16_t* weights, const uint16_t* pairs, int d, int begin,
                            int end, float* out, int64_t stride) {
  ZeroSums<kTiles>();
  for (int t = begin; t < end; t += 32) AddValues<kTiles>(weights + t, pairs + t * d);
  StoreValues<kTiles>(out, stride);
}

// PairValues and ValuesAmx in one pass, for up to 16 columns and value_dim = kTiles * 16 <= 64, as
// when decoding: each group of 32 tokens of V stays in L1. Prefetches K of the next split, too.
template <Codes kCodes, int kTiles>
BATON_INLINE void PairAndAddValues(const AttentionTile& tile, const uint16_t* weights, int begin,
                                   int end, uint16_t* pairs) {
  const int d = tile.value_dim;
  // Three rotating buffers, filled well ahead: tile loads get no store forwarding.
  const auto place = [&](int t) { return pairs + t / 32 % 3 * 32 * d; };
  // PairValues writes token t at offset t * d of its output, so t * d is subtracted here.
  const auto pair_up = [&](int t) {
    if (t < end) PairValues<kCodes>(tile, t, t + 32, place(t) - int64_t{t} * d);
  };
  pair_up(begin);
  pair_up(begin + 32);
  ZeroSums<kTiles>();
  for (int t = begin; t < end; t += 32) {
    pair_up(t + 64);
    PrefetchNext<kCodes>(tile, kSplitTokens / 2 + t / 2);
    AddValues<kTiles>(weights + t, place(t));
  }
  StoreValues<kTiles>(tile.result.value, tile.result.stride);
}

template <Codes kCodes>
BATON_INLINE void AttendAmxOf(const AttentionTile& tile) {
  float* scores = static_cast<float*>(tile.scratch);
  uint16_t* weights = reinterpret_cast<uint16_t*>(scores + kSplitTokens * kTileColumns);
  uint16_t* pairs = weights + kTileColumns * kSplitTokens;
  const Seen seen = SeenBy(tile);
  const int vectors = (tile.columns + 15) / 16;
  const TokenRange range = TokensToCompute(tile, seen);
  const auto [begin, end, end_of_blocks] = range;

  TileSession tiles;
  tiles.Configure(16, 16);
  ScoresAmx<kCodes>(tile, vectors, begin, end_of_blocks, scores, pairs);
  for (int v = 0; v < vectors; ++v) {
    WeightsAmx<kCodes>(tile, v * 16, seen, range, scores + v * kScoreVector,
                       weights + v * 16 * kSplitTokens);
  }
  const int d = tile.value_dim;
  if (vectors == 1 && d == 64) return PairAndAddValues<kCodes, 4>(tile, weights, begin, end, pairs);
  if (vectors == 1 && d == 32) return PairAndAddValues<kCodes, 2>(tile, weights, begin, end, pairs);
  PairValues<kCodes>(tile, begin, end, pairs);
  for (int v = 0; v < vectors; ++v) {
    const uint16_t* own = weights + v * 16 * kSplitTokens;
    float* out = tile.result.value + v * 16 * tile.result.stride;
    int i = 0;
    for (; i + 64 <= d; i += 64) {
      ValuesAmx<4>(own, pairs + i * 32, d, begin, end, out + i, tile.result.stride);
    }
    if (i < d) ValuesAmx<2>(own, pairs + i * 32, d, begin, end, out + i, tile.result.stride);
  }
}

void AttendAmx(const AttentionTile& tile) {
  switch (tile.codes) {
    case Codes::kInt8:
      return AttendAmxOf<Codes::kInt8>(tile);
    case Codes::kInt4:
      return AttendAmxOf<Codes::kInt4>(tile);
    case Codes::kFp8:
      return AttendAmxOf<Codes::kFp8>(tile);
    default:
      return AttendAmxOf<Codes::kPlain>(tile);
  }
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_AMX_ATTENTION_H_
