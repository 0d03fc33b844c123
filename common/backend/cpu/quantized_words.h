// Products of many rows of 8-bit activations and bytes of weights as numbers of 16 bits, for
// CPUs with AVX2 and without VNNI. There a product of bytes takes four instructions, three of them
// for the two units that multiply: the sign of the weights is moved to the activations first. As
// numbers of 16 bits, the same products take two multiplications and two additions and have the
// same sums. For kernels_avx2.cc only; see quantized_kernels.h.
#ifndef BATON_COMMON_BACKEND_CPU_QUANTIZED_WORDS_H_
#define BATON_COMMON_BACKEND_CPU_QUANTIZED_WORDS_H_

#include "common/backend/cpu/quantized_tiles.h"

namespace baton::backend {
namespace {

// Blocks and rows of a pass: unpacked, its weights stay in the first-level cache while all rows
// pass by, and the rows in the second-level cache while all panels do.
constexpr int64_t kWordPassBlocks = 8, kWordPassRows = 256;

struct WordRows {
  alignas(64) int16_t values[kWordPassRows][kWordPassBlocks * kQuantizedBlock];
  float scales[kWordPassRows][kWordPassBlocks];
};
struct WordWeights {
  // Each eight columns have their values for 2 of `in`, then for the next 2.
  alignas(64) int16_t values[kWordPassBlocks][kQuantizedBlock * kPanelColumns];
  F32x16 scales[kWordPassBlocks][kPanelColumns / 16];
};

void UnpackRows(const ActivationBlock* x, int64_t x_stride, int64_t rows, int64_t blocks,
                WordRows& out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t b = 0; b < blocks; ++b) {
      const ActivationBlock& block = x[r * x_stride + b];
      out.scales[r][b] = block.scale;
      for (int i = 0; i < kQuantizedBlock; i += 16) {
        const __m128i bytes = _mm_loadu_si128((const __m128i*)(block.values + i));
        _mm256_store_si256((__m256i*)(out.values[r] + b * kQuantizedBlock + i),
                           _mm256_cvtepi8_epi16(bytes));
      }
    }
  }
}

// w: blocks of bytes, [8][32 columns][4] each, less 128.
void UnpackWeights(const uint8_t* w, const QuantizedRange& range, WordWeights& out) {
  const __m256i of_two =
      _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1,  //
                       0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
  const __m256i zero = _mm256_set1_epi16(128);
  const auto words = [&](__m256i bytes) {
    return _mm256_sub_epi16(_mm256_shuffle_epi8(bytes, of_two), zero);
  };
  F32x16 scales[2];
  for (int64_t b = 0; b < range.end - range.begin; ++b) {
    if (b % range.group_blocks == 0) {
      for (int v = 0; v < 2; ++v) scales[v] = LoadElements(w, range.scale_element, v * 16);
      w += kQuantizedScaleBytes;
    }
    for (int v = 0; v < 2; ++v) out.scales[b][v] = scales[v];
    auto* to = (__m256i*)out.values[b];
    for (int i = 0; i < 32; ++i, w += 32, to += 2) {
      const __m256i bytes = _mm256_loadu_si256((const __m256i*)w);
      _mm256_store_si256(to, words(bytes));
      _mm256_store_si256(to + 1, words(_mm256_srli_epi32(bytes, 16)));
    }
  }
}

BATON_INLINE __m256i DotWords(__m256i w, const int16_t* x) {
  int32_t two;
  std::memcpy(&two, x, sizeof(two));
  return _mm256_madd_epi16(w, _mm256_set1_epi32(two));
}

// Adds the products of 4 columns of `in` and 8 of the panel to kHalf of the rows' sums. For the
// pins, see Pin.
template <__m256i I32x16::*kHalf, bool kFirst, int kRows>
BATON_INLINE void AddWords(const int16_t* x, const int16_t* w, int vector,
                           I32x16 (&sum)[kRows][2]) {
  __m256i first = _mm256_load_si256((const __m256i*)w);
  __m256i last = _mm256_load_si256((const __m256i*)(w + 16));
  asm("" : "+x"(first), "+x"(last));
  for (int r = 0; r < kRows; ++r) {
    const int16_t* row = x + r * kWordPassBlocks * kQuantizedBlock;
    __m256i& of_row = sum[r][vector].*kHalf;
    const __m256i products = DotWords(first, row);
    of_row = kFirst ? products : _mm256_add_epi32(of_row, products);
    asm("" : "+x"(of_row));
    of_row = _mm256_add_epi32(of_row, DotWords(last, row + 2));
    asm("" : "+x"(of_row));
  }
}

template <int kStep, int kRows>
BATON_INLINE void AddWordStep(const int16_t* x, const int16_t* w, I32x16 (&sum)[kRows][2]) {
  for (int v = 0; v < 2; ++v) {
    const int16_t* of_vector = w + kStep * 128 + v * 64;
    AddWords<&I32x16::lo, kStep == 0>(x + kStep * 4, of_vector, v, sum);
    AddWords<&I32x16::hi, kStep == 0>(x + kStep * 4, of_vector + 32, v, sum);
  }
}

// kRows rows from `row` on, all columns of the panel.
template <int kRows>
BATON_NO_INLINE void MulWordTile(const WordRows& x, int64_t row, const WordWeights& w,
                                 const float* bias, float* out, int64_t out_stride,
                                 const QuantizedRange& range) {
  F32x16 total[kRows][2];
  LoadTotals(out, out_stride, range, total);
  const uint8_t* ahead = range.ahead;
  for (int64_t b = 0; b < range.end - range.begin; ++b) {
    PrefetchAhead<Packing::kBytes>(ahead);
    const int16_t* values = x.values[row] + b * kQuantizedBlock;
    I32x16 sum[kRows][2];
    AddWordStep<0>(values, w.values[b], sum);
    AddWordStep<1>(values, w.values[b], sum);
    AddWordStep<2>(values, w.values[b], sum);
    AddWordStep<3>(values, w.values[b], sum);
    AddWordStep<4>(values, w.values[b], sum);
    AddWordStep<5>(values, w.values[b], sum);
    AddWordStep<6>(values, w.values[b], sum);
    AddWordStep<7>(values, w.values[b], sum);
    for (int r = 0; r < kRows; ++r) {
      const F32x16 x_scale = Set1(x.scales[row + r][b]);
      for (int v = 0; v < 2; ++v) {
        total[r][v] = Fma(Mul(ToFloat(sum[r][v]), x_scale), w.scales[b][v], total[r][v]);
      }
    }
  }
  StoreTotals(total, bias, out, out_stride, range);
}

// MulQuantizedSlice of bytes. REQUIRES: s.group_blocks <= kWordPassBlocks.
void MulQuantizedWords(const QuantizedSlice& s) {
  // Passes of nearly equal lengths, of whole groups.
  const int64_t most = kWordPassBlocks / s.group_blocks * s.group_blocks;
  const int64_t passes = (s.blocks + most - 1) / most;
  const int64_t blocks_a_pass =
      ((s.blocks + passes - 1) / passes + s.group_blocks - 1) / s.group_blocks * s.group_blocks;
  WordRows x;
  WordWeights weights;
  for (int64_t first = 0; first < s.rows; first += kWordPassRows) {
    const int64_t rows = s.rows - first < kWordPassRows ? s.rows - first : kWordPassRows;
    for (int64_t begin = 0; begin < s.blocks; begin += blocks_a_pass) {
      const int64_t left = s.blocks - begin;
      const int64_t blocks = left < blocks_a_pass ? left : blocks_a_pass;
      UnpackRows(s.x + first * s.blocks + begin, s.blocks, rows, blocks, x);
      for (int64_t column = 0; column < s.columns; column += kPanelColumns) {
        const uint8_t* w = s.panels + column / kPanelColumns * s.panel_bytes +
                           begin * BlockBytes(Packing::kBytes) +
                           begin / s.group_blocks * HeaderBytes(Packing::kBytes);
        const int64_t columns = s.columns - column;
        QuantizedRange range = {
            .begin = begin,
            .end = begin + blocks,
            .group_blocks = s.group_blocks,
            .block_count = s.blocks,
            .scale_element = s.scale_element,
            .columns = columns < kPanelColumns ? static_cast<int>(columns) : kPanelColumns,
            .first_vector = 0,
            .zero = 0,
            .ahead = nullptr};
        UnpackWeights(w, range, weights);
        const float* bias = s.bias == nullptr ? nullptr : s.bias + column;
        for (int64_t row = 0; row < rows; row += 2) {
          const int64_t tile = row / 2;
          range.ahead = tile >= kAheadTiles
                            ? nullptr
                            : w + s.panel_bytes + tile * AheadLines(Packing::kBytes) * kLineBytes;
          float* out = s.out + (first + row) * s.out_stride + column;
          if (row + 1 < rows) {
            MulWordTile<2>(x, row, weights, bias, out, s.out_stride, range);
          } else {
            MulWordTile<1>(x, row, weights, bias, out, s.out_stride, range);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_QUANTIZED_WORDS_H_
