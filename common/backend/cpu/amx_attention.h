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

// Weights of sixteen columns, from `column` on: bfloat16 [16][token].
template <Codes kCodes>
BATON_INLINE void WeightsAmx(const AttentionTile& tile, int column, Seen seen, TokenRange range,
                             float* scores, uint16_t* weights) {
  for (int t = range.end_of_blocks; t < range.end; ++t) Store(Zero(), scores + t * 16);  // masked
  __m512i pairs[16];
  WeighPairs(tile, column, seen, range.begin, range.end, scores, [&](int t, __m512i pair) {
    const int place = t % 32 / 2;
    pairs[place] = pair;
    if (place < 15) return;
    if (column == 0) PrefetchNext<kCodes>(tile, t / 32 * 16);
    Transpose16(pairs);
    for (int c = 0; c < 16; ++c) {
      _mm512_store_si512(weights + c * kSplitTokens + t / 32 * 32, pairs[c]);
    }
  });
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

// PairValues and ValuesAmx in one pass, for up to 16 columns and head_dim = kTiles * 16 <= 64, as
// when decoding: each group of 32 tokens of V stays in L1. Prefetches K of the next split, too.
template <Codes kCodes, int kTiles>
BATON_INLINE void PairAndAddValues(const AttentionTile& tile, const uint16_t* weights, int begin,
                                   int end, uint16_t* pairs) {
  const int d = tile.head_dim;
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
  const int d = tile.head_dim;
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
