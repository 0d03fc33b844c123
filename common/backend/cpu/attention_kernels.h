// Attention of a tile of query columns over one split of keys, in float32 for any format of the
// pool. For kernels_*.cc only; see simd16.h.
//
// Scores are [column / 16][token][column % 16], so that sixteen query columns are one vector.
// A score is one chain of products over the head's dimensions, a value one chain over the tokens:
// neither depends on the other columns of the tile. Tokens that a column does not see add an exact
// zero.
#ifndef BATON_COMMON_BACKEND_CPU_ATTENTION_KERNELS_H_
#define BATON_COMMON_BACKEND_CPU_ATTENTION_KERNELS_H_

#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/kv_codes.h"
#include "common/backend/cpu/lines_ahead.h"
#include "common/backend/cpu/simd16.h"
#include "common/backend/cpu/vector_kernels.h"

namespace baton::backend {
namespace {

// Floats of the scores of sixteen columns.
constexpr int kScoreVector = kSplitTokens * 16;
// Up to so many columns have scores [token][8] where a vector is wider than they are: ScoreStride.
constexpr int kFewColumns = 8;

BATON_INLINE int64_t RoundUp16(int64_t n) { return (n + 15) & ~int64_t{15}; }

int64_t PackedQueryBytes(int head_dim) { return int64_t{head_dim} * kTileColumns * 4; }

// [head_dim][64], columns padded with zeros to a multiple of 16.
void PackQuery(const float* const* q, int columns, int head_dim, float scale, void* packed) {
  float* out = static_cast<float*>(packed);
  const int padded = static_cast<int>(RoundUp16(columns));
  for (int c = 0; c < padded; ++c) {
    for (int i = 0; i < head_dim; ++i) {
      out[i * kTileColumns + c] = c < columns ? q[c][i] * scale : 0.0f;
    }
  }
}

// Scores, then K or V of one block as float32.
int64_t AttentionScratchBytes(int head_dim) {
  return int64_t{kSplitTokens} * kTileColumns * 4 + kSplitTokens * RoundUp16(head_dim) * 4;
}

// T: float, or uint16_t, whose elements are bfloat16.
template <class T>
struct Rows {
  const T* data;
  int64_t stride;
};

BATON_INLINE F32x16 LoadRow(const float* p) { return Load(p); }
BATON_INLINE F32x16 LoadRow(const uint16_t* p) { return LoadBF16(p); }

// The split's tokens [first, first + count), all in one block, as float32.
BATON_INLINE Rows<float> RowsOf(const AttentionTile& tile, const void* block, int count,
                                bool padded, float* scratch) {
  const int d = tile.head_dim;
  const int64_t stride = RoundUp16(d);
  if (tile.codes != Codes::kPlain) {
    if (tile.codes == Codes::kInt8) {
      DequantizeRows<Codes::kInt8>(tile, block, count, stride, scratch);
    } else if (tile.codes == Codes::kInt4) {
      DequantizeRows<Codes::kInt4>(tile, block, count, stride, scratch);
    } else {
      DequantizeRows<Codes::kFp8>(tile, block, count, stride, scratch);
    }
    return {scratch, stride};
  }
  if (tile.element == Element::kF32 && (!padded || stride == d)) {
    return {static_cast<const float*>(block), d};
  }
  if (stride == d) {
    ToF32(block, tile.element, int64_t{count} * d, scratch);
  } else {
    for (int t = 0; t < count; ++t) {
      const int64_t size = tile.element == Element::kF32 ? 4 : 2;
      const char* row = static_cast<const char*>(block) + int64_t{t} * d * size;
      ToF32(row, tile.element, d, scratch + t * stride);
      for (int64_t i = d; i < stride; ++i) scratch[t * stride + i] = 0;
    }
  }
  return {scratch, stride};
}

template <int kTokens, int kVectors>
BATON_INLINE void ScoreTile(Rows<float> keys, int d, const float* q, float* scores,
                            LinesAhead& ahead) {
  F32x16 sum[kTokens][kVectors];
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) sum[t][v] = Zero();
  }
  for (int i = 0; i < d; ++i) {
    ahead.Ask();
    for (int v = 0; v < kVectors; ++v) {
      const F32x16 column = Load(q + i * kTileColumns + v * 16);
      for (int t = 0; t < kTokens; ++t) {
        sum[t][v] = Fma(Set1(keys.data[t * keys.stride + i]), column, sum[t][v]);
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) {
    for (int v = 0; v < kVectors; ++v) Store(sum[t][v], scores + v * kScoreVector + t * 16);
  }
}

template <int kVectors>
BATON_INLINE void ScoreRows(Rows<float> keys, int tokens, int d, const float* q, float* scores,
                            LinesAhead& ahead) {
#if defined(__AVX512F__)
  constexpr int kTokens = kVectors == 1 ? 8 : 4;
#else
  constexpr int kTokens = 4;
#endif
  int t = 0;
  for (; t + kTokens <= tokens; t += kTokens) {
    ScoreTile<kTokens, kVectors>({keys.data + t * keys.stride, keys.stride}, d, q, scores + t * 16,
                                 ahead);
  }
  for (; t < tokens; ++t) {
    ScoreTile<1, kVectors>({keys.data + t * keys.stride, keys.stride}, d, q, scores + t * 16,
                           ahead);
  }
}

#if defined(__AVX2__)
// ScoreTile for up to 8 columns, as of a decode step: half of a vector, or the other half of each
// product would be wasted. Scores are [token][8]. Of bfloat16, one load has two dimensions.
template <int kTokens, class T>
BATON_INLINE void ScoreTileOf8(Rows<T> keys, int d, const float* q, float* scores,
                               LinesAhead& ahead) {
  __m256 sum[kTokens];
  for (int t = 0; t < kTokens; ++t) sum[t] = _mm256_setzero_ps();
  if constexpr (sizeof(T) == sizeof(float)) {
    for (int i = 0; i < d; ++i) {
      ahead.Ask();
      const __m256 column = _mm256_loadu_ps(q + i * kTileColumns);
      for (int t = 0; t < kTokens; ++t) {
        const __m256 key = _mm256_broadcast_ss(keys.data + t * keys.stride + i);
        sum[t] = _mm256_fmadd_ps(key, column, sum[t]);
      }
    }
  } else {
    const __m256i upper = _mm256_set1_epi32(-65536);
    for (int i = 0; i < d; i += 2) {
      ahead.Ask();
      const __m256 even = _mm256_loadu_ps(q + i * kTileColumns);
      const __m256 odd = _mm256_loadu_ps(q + (i + 1) * kTileColumns);
      for (int t = 0; t < kTokens; ++t) {
        int32_t two;
        std::memcpy(&two, keys.data + t * keys.stride + i, sizeof two);
        const __m256i keys_of_two = _mm256_set1_epi32(two);
        const __m256 first = _mm256_castsi256_ps(_mm256_slli_epi32(keys_of_two, 16));
        const __m256 second = _mm256_castsi256_ps(_mm256_and_si256(keys_of_two, upper));
        sum[t] = _mm256_fmadd_ps(second, odd, _mm256_fmadd_ps(first, even, sum[t]));
      }
    }
  }
  for (int t = 0; t < kTokens; ++t) _mm256_storeu_ps(scores + t * kFewColumns, sum[t]);
}

template <class T>
BATON_INLINE void ScoreRowsOf8(Rows<T> keys, int tokens, int d, const float* q, float* scores,
                               LinesAhead& ahead) {
  int t = 0;
  for (; t + 8 <= tokens; t += 8) {
    ScoreTileOf8<8, T>({keys.data + t * keys.stride, keys.stride}, d, q, scores + t * kFewColumns,
                       ahead);
  }
  for (; t < tokens; ++t) {
    ScoreTileOf8<1, T>({keys.data + t * keys.stride, keys.stride}, d, q, scores + t * kFewColumns,
                       ahead);
  }
}
#endif

// Scores from one token to the next.
BATON_INLINE int ScoreStride(int columns) {
#if defined(__AVX2__)
  if (columns <= kFewColumns) return kFewColumns;
#endif
  return 16;
}

template <class T>
BATON_INLINE void ScoreBlock(Rows<T> keys, int tokens, int d, const float* q, int columns,
                             float* scores, LinesAhead ahead) {
#if defined(__AVX2__)
  if (columns <= kFewColumns) return ScoreRowsOf8(keys, tokens, d, q, scores, ahead);
#endif
  if constexpr (sizeof(T) == sizeof(float)) {
    const int vectors = (columns + 15) / 16;
#if defined(__AVX512F__)
    switch (vectors) {
      case 4:
        return ScoreRows<4>(keys, tokens, d, q, scores, ahead);
      case 3:
        return ScoreRows<3>(keys, tokens, d, q, scores, ahead);
      case 2:
        return ScoreRows<2>(keys, tokens, d, q, scores, ahead);
      default:
        return ScoreRows<1>(keys, tokens, d, q, scores, ahead);
    }
#else
    for (int v = 0; v < vectors; ++v) {
      ScoreRows<1>(keys, tokens, d, q + v * 16, scores + v * kScoreVector, ahead);
    }
#endif
  }
}

struct Seen {
  int first_any, end_any;  // some column sees tokens of this range
  int first_all, end_all;  // every column does
};

BATON_INLINE Seen SeenBy(const AttentionTile& tile) {
  Seen seen = {tile.first_seen[0], tile.end_seen[0], tile.first_seen[0], tile.end_seen[0]};
  for (int c = 1; c < tile.columns; ++c) {
    const int first = tile.first_seen[c], end = tile.end_seen[c];
    if (first < seen.first_any) seen.first_any = first;
    if (first > seen.first_all) seen.first_all = first;
    if (end > seen.end_any) seen.end_any = end;
    if (end < seen.end_all) seen.end_all = end;
  }
  return seen;
}

// Scores of tokens [begin, end), `columns` a token, to cap * tanh(score / cap).
BATON_INLINE void CapScores(float cap, int columns, int begin, int end, float* scores) {
  const F32x16 inverse = Set1(1.0f / cap), most = Set1(cap);
  for (int64_t i = int64_t{begin} * columns; i < int64_t{end} * columns; i += 16) {
    Store(Mul(Tanh(Mul(Load(scores + i), inverse)), most), scores + i);
  }
}

// The largest scores of 16 / kTokens columns, from `column` on, over tokens [begin, end); scores
// that a column does not see become -inf. Lane i of each vector of scores, and of the result, is
// column i % (16 / kTokens) of token i / (16 / kTokens): with two tokens a vector, the result has
// the largest score of the even tokens and of the odd ones. begin is a multiple of 4, begin and end
// are multiples of kTokens. cap: AttentionTile's, in the scores' unit.
template <int kTokens>
BATON_INLINE F32x16 MaskAndMax(const AttentionTile& tile, float cap, int column, Seen seen,
                               int begin, int end, float* scores) {
  constexpr int kColumns = 16 / kTokens;
  if (cap != 0) CapScores(cap, kColumns, begin, end, scores);
  float lanes[2][16];
  for (int i = 0; i < 16; ++i) {
    const int of = column + i % kColumns, token = i / kColumns;
    lanes[0][i] = static_cast<float>(tile.first_seen[of] - token);
    lanes[1][i] = static_cast<float>(tile.end_seen[of] - token);
  }
  const F32x16 first_seen = Load(lanes[0]), end_seen = Load(lanes[1]);
  const F32x16 hidden = Set1(-__builtin_inff());
  const auto mask = [&](int from, int to) {
    for (int t = from / kTokens * kTokens; t < to; t += kTokens) {
      const F32x16 token = Set1(static_cast<float>(t));
      const F32x16 s = Load(scores + t * kColumns);
      Store(IfLess(token, first_seen, hidden, IfLess(token, end_seen, s, hidden)),
            scores + t * kColumns);
    }
  };
  mask(begin, seen.first_all < end ? seen.first_all : end);
  mask(seen.end_all > begin ? seen.end_all : begin, end);
  // Four chains: one would wait for itself. A maximum does not depend on the order.
  const F32x16 lowest = Set1(kLowestScore);
  F32x16 max0 = lowest, max1 = lowest, max2 = lowest, max3 = lowest;
  int t = begin;
  for (; t + 4 * kTokens <= end; t += 4 * kTokens) {
    const float* s = scores + t * kColumns;
    max0 = Max(max0, Load(s));
    max1 = Max(max1, Load(s + 16));
    max2 = Max(max2, Load(s + 32));
    max3 = Max(max3, Load(s + 48));
  }
  for (; t < end; t += kTokens) max0 = Max(max0, Load(scores + t * kColumns));
  return Max(Max(max0, max1), Max(max2, max3));
}

// Adds e^(score - max) of one token to `sum` and leaves it in place of the score.
BATON_INLINE F32x16 AddWeight(F32x16 max, F32x16 sum, float* score) {
  const F32x16 e = Exp(Sub(Load(score), max));
  Store(e, score);
  return Add(sum, e);
}

// Turns the scores of tokens [begin, end) into e^(score - max), for 16 / kTokens columns from
// `column` on. The sum has a chain for every remainder of the position by 4: an order that no chunk
// changes.
template <int kTokens>
BATON_INLINE void SoftmaxColumns(const AttentionTile& tile, int column, Seen seen, int begin,
                                 int end, float* scores) {
  constexpr int kChains = 4 / kTokens;  // vectors, each with the chains of kTokens remainders
  const auto add_tokens = [](F32x16 a) { return kTokens == 2 ? Add(a, SwapHalves(a)) : a; };
  F32x16 max = MaskAndMax<kTokens>(tile, tile.score_cap, column, seen, begin, end, scores);
  if (kTokens == 2) max = Max(max, SwapHalves(max));
  F32x16 sum[4] = {Zero(), Zero(), Zero(), Zero()};
  int t = begin;
  for (; t + 4 <= end; t += 4) {
    for (int i = 0; i < kChains; ++i) {
      sum[i] = AddWeight(max, sum[i], scores + t * 16 / kTokens + i * 16);
    }
  }
  for (int i = 0; t < end; t += kTokens, ++i) {
    sum[i] = AddWeight(max, sum[i], scores + t * 16 / kTokens);
  }
  F32x16 total = Add(add_tokens(sum[0]), add_tokens(sum[1]));
  if (kTokens == 1) total = Add(total, Add(sum[2], sum[3]));
  Store(max, tile.result.max + column);
  Store(total, tile.result.sum + column);
}

template <int kColumns, int kVectors, class T>
BATON_INLINE void ValueTile(Rows<T> values, int tokens, const float* weights, int weight_stride,
                            float* out, int64_t out_stride, LinesAhead& ahead) {
  F32x16 sum[kColumns][kVectors];
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) sum[c][v] = Load(out + c * out_stride + v * 16);
  }
  for (int t = 0; t < tokens; ++t) {
    for (int v = 0; v < kVectors; ++v) {
      // Twice, for the sake of tiles that are the only ones of their dimensions.
      ahead.Ask();
      ahead.Ask();
      const F32x16 value = LoadRow(values.data + t * values.stride + v * 16);
      for (int c = 0; c < kColumns; ++c) {
        sum[c][v] = Fma(Set1(weights[t * weight_stride + c]), value, sum[c][v]);
      }
    }
  }
  for (int c = 0; c < kColumns; ++c) {
    for (int v = 0; v < kVectors; ++v) Store(sum[c][v], out + c * out_stride + v * 16);
  }
}

template <int kVectors, class T>
BATON_INLINE void ValueVectors(Rows<T> values, int tokens, const float* weights, int columns,
                               float* out, int64_t out_stride, LinesAhead& ahead) {
  const int stride = ScoreStride(columns);
  const auto weights_of = [&](int c) { return weights + c / 16 * kScoreVector + c % 16; };
  int c = 0;
  for (; c + 4 <= columns; c += 4) {
    ValueTile<4, kVectors>(values, tokens, weights_of(c), stride, out + c * out_stride, out_stride,
                           ahead);
  }
  const float* rest = weights_of(c);
  out += c * out_stride;
  switch (columns - c) {
    case 3:
      return ValueTile<3, kVectors>(values, tokens, rest, stride, out, out_stride, ahead);
    case 2:
      return ValueTile<2, kVectors>(values, tokens, rest, stride, out, out_stride, ahead);
    case 1:
      return ValueTile<1, kVectors>(values, tokens, rest, stride, out, out_stride, ahead);
    default:
      return;
  }
}

template <class T>
BATON_INLINE void ValueBlock(Rows<T> values, int tokens, int64_t d, const float* weights,
                             int columns, float* out, int64_t out_stride, LinesAhead ahead) {
  int64_t i = 0;
#if defined(__AVX512F__)
  for (; i + 64 <= d; i += 64) {
    ValueVectors<4, T>({values.data + i, values.stride}, tokens, weights, columns, out + i,
                       out_stride, ahead);
  }
#endif
  for (; i < d; i += 16) {
    ValueVectors<1, T>({values.data + i, values.stride}, tokens, weights, columns, out + i,
                       out_stride, ahead);
  }
}

// Whether a block's rows are read as they are, in bfloat16: where few columns read them,
// converting them first would cost more than it saves.
BATON_INLINE bool ReadsBF16(const AttentionTile& tile) {
  return tile.codes == Codes::kPlain && tile.element == Element::kBF16 &&
         ScoreStride(tile.columns) == kFewColumns && tile.head_dim % 16 == 0;
}

void AttendF32(const AttentionTile& tile) {
  float* scores = static_cast<float*>(tile.scratch);
  float* rows = scores + kSplitTokens * kTileColumns;
  const Seen seen = SeenBy(tile);
  const int vectors = (tile.columns + 15) / 16;
  const int stride = ScoreStride(tile.columns);
  const int step = tile.block_tokens;
  const int64_t scale_bytes = tile.codes == Codes::kPlain ? 0 : 4;
  const int64_t block_bytes = step * (tile.row_bytes + scale_bytes);
  const bool bf16 = ReadsBF16(tile);
  const auto bf16_rows = [d = tile.head_dim](const void* block) {
    return Rows<uint16_t>{static_cast<const uint16_t*>(block), d};
  };
  const int first_block = seen.first_any / step;
  const int begin = first_block * step;
  const int end = seen.end_any < tile.tokens ? seen.end_any : tile.tokens;
  for (int t = begin; t < end; t += step) {
    const int count = end - t < step ? end - t : step;
    const int block = t / step;
    const LinesAhead ahead(t + step < end ? tile.k_blocks[block + 1] : nullptr,
                           tile.v_blocks[block], block_bytes);
    const void* k = tile.k_blocks[block];
    const auto score = [&](auto keys) {
      ScoreBlock(keys, count, tile.head_dim, static_cast<const float*>(tile.query), tile.columns,
                 scores + t * stride, ahead);
    };
    if (bf16) {
      score(bf16_rows(k));
    } else {
      score(RowsOf(tile, k, count, false, rows));
    }
  }
  if (stride == kFewColumns) {
    // The last token may be alone in its vector. The other is masked.
    if (end % 2 == 1) std::memset(scores + end * stride, 0, sizeof(float) * kFewColumns);
    SoftmaxColumns<2>(tile, 0, seen, begin, end + end % 2, scores);
  } else {
    for (int v = 0; v < vectors; ++v) {
      SoftmaxColumns<1>(tile, v * 16, seen, begin, end, scores + v * kScoreVector);
    }
  }
  const int64_t d = RoundUp16(tile.value_dim);
  for (int c = 0; c < tile.columns; ++c) {
    for (int64_t i = 0; i < d; i += 16)
      Store(Zero(), tile.result.value + c * tile.result.stride + i);
  }
  for (int t = begin; t < end; t += step) {
    const int count = end - t < step ? end - t : step;
    const int block = t / step;
    const LinesAhead ahead(t + step < end ? tile.v_blocks[block + 1] : nullptr,
                           block < tile.next_block_count ? tile.next_k_blocks[block] : nullptr,
                           block_bytes);
    const void* v = tile.v_blocks[block];
    const auto add = [&](auto values) {
      ValueBlock(values, count, d, scores + t * stride, tile.columns, tile.result.value,
                 tile.result.stride, ahead);
    };
    if (bf16) {
      add(bf16_rows(v));
    } else {
      add(RowsOf(tile, v, count, true, rows));
    }
  }
}

void CombineSplit(const SplitResult& split, int columns, int64_t n, const SplitResult& total) {
  for (int first = 0; first < columns; first += 16) {
    const F32x16 sum = Load(split.sum + first), old_sum = Load(total.sum + first);
    const F32x16 max = Load(split.max + first), old_max = Load(total.max + first);
    // A column that sees nothing of the split has the sum 0. (A NaN is not below it.)
    const F32x16 least = Set1(1e-30f);
    const F32x16 largest = IfLess(sum, least, old_max, Max(max, old_max));
    float scales[2][16];
    const F32x16 scale = IfLess(sum, least, Zero(), Exp(Sub(max, largest)));
    const F32x16 old_scale = Exp(Sub(old_max, largest));
    Store(scale, scales[0]);
    Store(old_scale, scales[1]);
    Store(largest, total.max + first);
    Store(Fma(sum, scale, Mul(old_sum, old_scale)), total.sum + first);
    const int count = columns - first < 16 ? columns - first : 16;
    for (int c = 0; c < count; ++c) {
      if (split.sum[first + c] == 0) continue;
      const F32x16 factor = Set1(scales[0][c]), old_factor = Set1(scales[1][c]);
      const float* from = split.value + (first + c) * n;
      float* to = total.value + (first + c) * n;
      for (int64_t i = 0; i < n; i += 16) {
        Store(Fma(Load(from + i), factor, Mul(Load(to + i), old_factor)), to + i);
      }
    }
  }
}

void FinishRow(const float* value, float sum, float sink, int64_t n, Element element, void* y) {
  const F32x16 divisor = Add(Set1(sum), Exp(Set1(sink)));
  for (int64_t i = 0; i < n; i += 16) {
    const F32x16 a = Div(Load(value + i), divisor);
    if (n - i >= 16) {
      StoreElements(a, element, y, i);
    } else {
      StoreElementsPart(a, element, y, i, static_cast<int>(n - i));
    }
  }
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_ATTENTION_KERNELS_H_
