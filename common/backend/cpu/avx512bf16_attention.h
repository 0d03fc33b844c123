// Attention over a bfloat16 or quantised pool with the dot products of AVX-512 BF16. For
// kernels_avx512bf16.cc only, for the reason in simd16.h.
//
// Columns come in groups of eight, so that the few of a decode step fill their vectors: with two
// chains each for the scores, with two tokens for the weights. A score is the sum of two chains,
// one over the even pairs of dimensions and one over the odd ones; a value is one chain over pairs
// of tokens. None depends on the other columns of the tile.
#ifndef BATON_COMMON_BACKEND_CPU_AVX512BF16_ATTENTION_H_
#define BATON_COMMON_BACKEND_CPU_AVX512BF16_ATTENTION_H_

#include "common/backend/cpu/bf16_attention.h"

namespace baton::backend {
namespace {

constexpr int kGroupColumns = 8;
// Scores of a group: [token][8]. Weights of a group: [token / 2][8][2].
constexpr int kGroupScores = kSplitTokens * kGroupColumns;

// The pair of elements at p, in every lane.
BATON_INLINE __m512bh SetPair(const uint16_t* p) {
  int pair;
  std::memcpy(&pair, p, sizeof(pair));
  return (__m512bh)_mm512_set1_epi32(pair);
}

// The two pairs of elements at p, in every two lanes.
BATON_INLINE __m512bh SetTwoPairs(const uint16_t* p) {
  long long pairs;
  std::memcpy(&pairs, p, sizeof(pairs));
  return (__m512bh)_mm512_set1_epi64(pairs);
}

BATON_INLINE __m512bh LoadPairs(const uint16_t* p) { return (__m512bh)_mm512_load_si512(p); }

// bfloat16 [columns / 8][dimension / 4][column % 8][dimension % 4]
void PackQueryBF16(const float* const* q, int columns, int head_dim, float scale, void* packed) {
  uint16_t* out = static_cast<uint16_t*>(packed);
  const F32x16 factor = Set1(scale * kLog2E);
  const int groups = (columns + kGroupColumns - 1) / kGroupColumns;
  for (int c = 0; c < groups * kGroupColumns; ++c) {
    uint16_t* to = out + (c / kGroupColumns * head_dim * kGroupColumns) + c % kGroupColumns * 4;
    for (int i = 0; i < head_dim; i += 32) {
      uint16_t row[32];
      _mm512_storeu_si512(row, c < columns ? LoadQuery(q[c] + i, factor) : _mm512_setzero_si512());
      for (int four = 0; four < 32; four += 4) {
        std::memcpy(to + (i + four) * kGroupColumns, row + four, 4 * sizeof(uint16_t));
      }
    }
  }
}

// keys: [kTokens][d].
template <int kTokens, int kGroups>
BATON_INLINE void ScoreTokens(const uint16_t* keys, int d, const uint16_t* query, float* scores,
                              LinesAhead& ahead) {
  __m512 sum[kTokens][kGroups];
  for (int t = 0; t < kTokens; ++t) {
    for (int g = 0; g < kGroups; ++g) sum[t][g] = _mm512_setzero_ps();
  }
  for (int i = 0; i < d; i += 4) {
    ahead.Ask();
    ahead.Ask();
    __m512bh columns[kGroups];
    for (int g = 0; g < kGroups; ++g) columns[g] = LoadPairs(query + (g * d + i) * kGroupColumns);
    for (int t = 0; t < kTokens; ++t) {
      const __m512bh key = SetTwoPairs(keys + t * d + i);
      for (int g = 0; g < kGroups; ++g) {
        sum[t][g] = _mm512_dpbf16_ps(sum[t][g], columns[g], key);
      }
    }
  }
  const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  for (int t = 0; t < kTokens; t += 2) {
    for (int g = 0; g < kGroups; ++g) {
      const __m512 a = sum[t][g], b = sum[t + 1][g];
      _mm512_store_ps(
          scores + g * kGroupScores + t * kGroupColumns,
          _mm512_add_ps(_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b)));
    }
  }
}

template <int kTokens, int kGroups>
BATON_INLINE void ScoreSixteen(const uint16_t* keys, int head_dim, const uint16_t* query,
                               float* scores, LinesAhead& ahead) {
  const auto score = [&](int d) __attribute__((always_inline)) {
    for (int t = 0; t < 16; t += kTokens) {
      ScoreTokens<kTokens, kGroups>(keys + t * d, d, query, scores + t * kGroupColumns, ahead);
    }
  };
  // Rows at constant distances need no registers of their own.
  if (head_dim == 64) return score(64);
  if (head_dim == 128) return score(128);
  score(head_dim);
}

// Sixteen tokens against all columns.
void ScoreGroups(const uint16_t* keys, int d, const uint16_t* query, int groups, float* scores,
                 LinesAhead ahead) {
  for (; groups > 0; groups -= 4) {
    switch (groups) {
      case 1:
        return ScoreSixteen<8, 1>(keys, d, query, scores, ahead);
      case 2:
        return ScoreSixteen<8, 2>(keys, d, query, scores, ahead);
      case 3:
        return ScoreSixteen<4, 3>(keys, d, query, scores, ahead);
      default:
        ScoreSixteen<4, 4>(keys, d, query, scores, ahead);
    }
    query += 4 * d * kGroupColumns;
    scores += 4 * kGroupScores;
  }
}

// Tokens [begin, end), in groups of 16. dequantized: scratch for codes.
template <Codes kCodes>
BATON_INLINE void ScoresBF16(const AttentionTile& tile, int groups, int begin, int end,
                             float* scores, uint16_t* dequantized) {
  const auto* query = static_cast<const uint16_t*>(tile.query);
  for (int t = begin; t < end; t += 16) {
    const void* keys_ahead =
        t + 32 < end ? RowsAhead<kCodes, _MM_HINT_T0>(tile, tile.k_blocks, t + 32) : nullptr;
    const void* values_ahead =
        t < tile.tokens ? RowsAhead<kCodes, _MM_HINT_T1>(tile, tile.v_blocks, t) : nullptr;
    const LinesAhead ahead(keys_ahead, values_ahead, 16 * tile.row_bytes);
    const uint16_t* keys = dequantized;
    if constexpr (kCodes == Codes::kPlain) {
      keys = reinterpret_cast<const uint16_t*>(TokenRow(tile, tile.k_blocks, t));
    } else {
      DequantizeKeys<kCodes>(tile, t, dequantized);
    }
    ScoreGroups(keys, tile.head_dim, query, groups, scores + t * kGroupColumns, ahead);
  }
}

// Masks the scores of a group of columns, from `column` on, and turns them into bfloat16 weights.
// Adds the weights up in the same order as SoftmaxColumns.
template <Codes kCodes>
BATON_INLINE void WeightsBF16(const AttentionTile& tile, int column, Seen seen, TokenRange range,
                              float* scores, uint16_t* weights) {
  for (int t = range.end_of_blocks; t < range.end; t += 2) {
    Store(Zero(), scores + t * kGroupColumns);  // masked
  }
  const F32x16 by_token =
      MaskAndMax<2>(tile, tile.score_cap * kLog2E, column, seen, range.begin, range.end, scores);
  const F32x16 max = Max(by_token, SwapHalves(by_token));
  // Takes the tokens 0 and 1 of [token][8] together, and 2 and 3.
  const __m512i interleave =
      _mm512_set_epi16(31, 23, 30, 22, 29, 21, 28, 20, 27, 19, 26, 18, 25, 17, 24, 16, 15, 7, 14, 6,
                       13, 5, 12, 4, 11, 3, 10, 2, 9, 1, 8, 0);
  F32x16 sum01 = Zero(), sum23 = Zero();
  for (int t = range.begin; t < range.end; t += 4) {
    if (column == 0 && t % 16 == 0) PrefetchNext<kCodes>(tile, t);
    const float* score = scores + t * kGroupColumns;
    const F32x16 first = {PowerOfTwoOf(Sub(Load(score), max).v)};
    const F32x16 second = {PowerOfTwoOf(Sub(Load(score + 16), max).v)};
    sum01 = Add(sum01, first);
    sum23 = Add(sum23, second);
    const __m512i tokens = (__m512i)_mm512_cvtne2ps_pbh(second.v, first.v);
    _mm512_store_si512(weights + t * kGroupColumns, _mm512_permutexvar_epi16(interleave, tokens));
  }
  const F32x16 sum = Add(Add(sum01, SwapHalves(sum01)), Add(sum23, SwapHalves(sum23)));
  StorePart(Mul(max, Set1(kLn2)), tile.result.max + column, kGroupColumns);
  StorePart(sum, tile.result.sum + column, kGroupColumns);
}

// kColumns columns and kVectors * 16 dimensions. weights: of the first of these columns; pairs: as
// PairValues left them, from the first of these dimensions on.
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
        const __m512bh weight = SetPair(weights + (t + 2 * pair) * kGroupColumns + 2 * c);
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
void ValuesBF16(const AttentionTile& tile, const uint16_t* weights, const uint16_t* pairs,
                TokenRange range, float* out) {
  const int64_t stride = tile.result.stride;
  for (int c = 0; c < tile.columns; c += 4, out += 4 * stride) {
    const uint16_t* own = weights + c / kGroupColumns * kGroupScores + c % kGroupColumns * 2;
    const auto sum = [&]<int kColumns>() {
      SumValues<kColumns, kVectors>(own, pairs, tile.value_dim, range.begin, range.end, out,
                                    stride);
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
  const int groups = (tile.columns + kGroupColumns - 1) / kGroupColumns;
  const TokenRange range = TokensToCompute(tile, seen);
  ScoresBF16<kCodes>(tile, groups, range.begin, range.end_of_blocks, scores, pairs);
  for (int g = 0; g < groups; ++g) {
    WeightsBF16<kCodes>(tile, g * kGroupColumns, seen, range, scores + g * kGroupScores,
                        weights + g * kGroupScores);
  }
  PairValues<kCodes>(tile, range.begin, range.end, pairs);
  int i = 0;
  for (; i + 64 <= tile.value_dim; i += 64) {
    ValuesBF16<4>(tile, weights, pairs + i * 32, range, tile.result.value + i);
  }
  if (i < tile.value_dim) {
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
