// Attention over a bfloat16 or quantised pool with the dot products of AVX-512 BF16. For
// kernels_avx512bf16.cc only, for the reason in simd16.h.
//
// A score is one chain of pairs of dimensions, a value one chain of pairs of tokens. Neither
// depends on the other columns of the tile.
#ifndef BATON_COMMON_BACKEND_CPU_AVX512BF16_ATTENTION_H_
#define BATON_COMMON_BACKEND_CPU_AVX512BF16_ATTENTION_H_

#include "common/backend/cpu/bf16_attention.h"

namespace baton::backend {
namespace {

// The pair of elements at p, in every lane.
BATON_INLINE __m512bh SetPair(const uint16_t* p) {
  int pair;
  std::memcpy(&pair, p, sizeof(pair));
  return (__m512bh)_mm512_set1_epi32(pair);
}

BATON_INLINE __m512bh LoadPairs(const uint16_t* p) { return (__m512bh)_mm512_load_si512(p); }

// keys: [kTokens][d].
template <int kTokens, int kVectors>
BATON_INLINE void ScoreTokens(const uint16_t* keys, int d, const uint16_t* query, float* scores) {
  __m512 sum[kTokens][kVectors];
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) sum[t][v] = _mm512_setzero_ps();
  }
  for (int i = 0; i < d; i += 2) {
    __m512bh columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = LoadPairs(query + (v * d + i) * 16);
    for (int t = 0; t < kTokens; ++t) {
      const __m512bh key = SetPair(keys + t * d + i);
      for (int v = 0; v < kVectors; ++v) {
        sum[t][v] = _mm512_dpbf16_ps(sum[t][v], columns[v], key);
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) {
      _mm512_store_ps(scores + v * kScoreVector + t * 16, sum[t][v]);
    }
  }
}

template <int kTokens, int kVectors>
BATON_INLINE void ScoreSixteen(const uint16_t* keys, int head_dim, const uint16_t* query,
                               float* scores) {
  const auto score = [&](int d) __attribute__((always_inline)) {
    for (int t = 0; t < 16; t += kTokens) {
      ScoreTokens<kTokens, kVectors>(keys + t * d, d, query, scores + t * 16);
    }
  };
  // Rows at constant distances need no registers of their own.
  if (head_dim == 64) return score(64);
  if (head_dim == 128) return score(128);
  score(head_dim);
}

// Tokens [begin, end), in groups of 16. dequantized: scratch for codes.
template <Codes kCodes>
BATON_INLINE void ScoresBF16(const AttentionTile& tile, int vectors, int begin, int end,
                             float* scores, uint16_t* dequantized) {
  const auto* query = static_cast<const uint16_t*>(tile.query);
  for (int t = begin; t < end; t += 16) {
    // Blocks are not contiguous, so the hardware prefetch stops at the end of each.
    if (t + 32 < end) PrefetchTokens<kCodes, _MM_HINT_T0>(tile, tile.k_blocks, t + 32);
    if (t < tile.tokens) PrefetchTokens<kCodes, _MM_HINT_T1>(tile, tile.v_blocks, t);
    const uint16_t* keys = dequantized;
    if constexpr (kCodes == Codes::kPlain) {
      keys = reinterpret_cast<const uint16_t*>(TokenRow(tile, tile.k_blocks, t));
    } else {
      DequantizeKeys<kCodes>(tile, t, dequantized);
    }
    float* to = scores + t * 16;
    switch (vectors) {
      case 4:
        ScoreSixteen<4, 4>(keys, tile.head_dim, query, to);
        break;
      case 3:
        ScoreSixteen<4, 3>(keys, tile.head_dim, query, to);
        break;
      case 2:
        ScoreSixteen<8, 2>(keys, tile.head_dim, query, to);
        break;
      default:
        ScoreSixteen<8, 1>(keys, tile.head_dim, query, to);
    }
  }
}

// Weights of sixteen columns, from `column` on: bfloat16 [token / 2][16][2].
template <Codes kCodes>
BATON_INLINE void WeightsBF16(const AttentionTile& tile, int column, Seen seen, TokenRange range,
                              float* scores, uint16_t* weights) {
  for (int t = range.end_of_blocks; t < range.end; ++t) Store(Zero(), scores + t * 16);  // masked
  WeighPairs(tile, column, seen, range.begin, range.end, scores, [&](int t, __m512i pair) {
    if (column == 0 && t % 16 == 0) PrefetchNext<kCodes>(tile, t);
    _mm512_store_si512(weights + t * 16, pair);
  });
}

// kColumns columns and kVectors * 16 dimensions. weights: [token / 2][16][2], of the first of these
// columns; pairs: as PairValues left them, from the first of these dimensions on.
template <int kColumns, int kVectors>
BATON_INLINE void SumValues(const uint16_t* weights, const uint16_t* pairs, int d, int begin,
                            int end, float* out, int64_t stride) {
  __m512 sum[kColumns][kVectors];
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) sum[c][v] = _mm512_setzero_ps();
  }
  for (int t = begin; t < end; t += 32) {
    for (int pair = 0; pair < 16; ++pair) {
      __m512bh values[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        values[v] = LoadPairs(pairs + t * d + v * kPairTile + pair * 32);
      }
      for (int c = 0; c < kColumns; ++c) {
        const __m512bh weight = SetPair(weights + (t / 2 + pair) * 32 + 2 * c);
        for (int v = 0; v < kVectors; ++v) {
          sum[c][v] = _mm512_dpbf16_ps(sum[c][v], values[v], weight);
        }
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(out + c * stride + v * 16, sum[c][v]);
  }
}

// All columns and kVectors * 16 dimensions.
template <int kVectors>
BATON_INLINE void ValuesBF16(const AttentionTile& tile, const uint16_t* weights,
                             const uint16_t* pairs, TokenRange range, float* out) {
  const int64_t stride = tile.result.stride;
  for (int c = 0; c < tile.columns; c += 4, out += 4 * stride) {
    const uint16_t* own = weights + c / 16 * 16 * kSplitTokens + c % 16 * 2;
    const auto sum = [&]<int kColumns>() {
      SumValues<kColumns, kVectors>(own, pairs, tile.head_dim, range.begin, range.end, out, stride);
    };
    switch (tile.columns - c) {
      case 1:
        return sum.template operator()<1>();
      case 2:
        return sum.template operator()<2>();
      case 3:
        return sum.template operator()<3>();
      default:
        sum.template operator()<4>();
    }
  }
}

template <Codes kCodes>
BATON_INLINE void AttendBF16Of(const AttentionTile& tile) {
  float* scores = static_cast<float*>(tile.scratch);
  uint16_t* weights = reinterpret_cast<uint16_t*>(scores + kSplitTokens * kTileColumns);
  uint16_t* pairs = weights + kTileColumns * kSplitTokens;
  const Seen seen = SeenBy(tile);
  const int vectors = (tile.columns + 15) / 16;
  const TokenRange range = TokensToCompute(tile, seen);
  ScoresBF16<kCodes>(tile, vectors, range.begin, range.end_of_blocks, scores, pairs);
  for (int v = 0; v < vectors; ++v) {
    WeightsBF16<kCodes>(tile, v * 16, seen, range, scores + v * kScoreVector,
                        weights + v * 16 * kSplitTokens);
  }
  PairValues<kCodes>(tile, range.begin, range.end, pairs);
  int i = 0;
  for (; i + 64 <= tile.head_dim; i += 64) {
    ValuesBF16<4>(tile, weights, pairs + i * 32, range, tile.result.value + i);
  }
  if (i < tile.head_dim) {
    ValuesBF16<2>(tile, weights, pairs + i * 32, range, tile.result.value + i);
  }
}

void AttendBF16(const AttentionTile& tile) {
  switch (tile.codes) {
    case Codes::kInt8:
      return AttendBF16Of<Codes::kInt8>(tile);
    case Codes::kInt4:
      return AttendBF16Of<Codes::kInt4>(tile);
    case Codes::kFp8:
      return AttendBF16Of<Codes::kFp8>(tile);
    default:
      return AttendBF16Of<Codes::kPlain>(tile);
  }
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_AVX512BF16_ATTENTION_H_
