// Products of 8-bit activations and weights of few bits. For kernels_*.cc only; see simd16.h.
//
// The sum over a block of 32 columns is a whole number below 2^24, exact on every instruction set
// and in every order. Only the sum over the blocks rounds: one chain of additions in the order of
// the blocks. So the bits of an element depend on neither the rows of a call nor, where multiply
// and add are fused, the instruction set.
#ifndef BATON_COMMON_BACKEND_CPU_QUANTIZED_KERNELS_H_
#define BATON_COMMON_BACKEND_CPU_QUANTIZED_KERNELS_H_

#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/quantized_simd.h"
#include "common/backend/cpu/quantized_tiles.h"
#include "common/backend/cpu/vector_kernels.h"
#if defined(BATON_WORD_TILES)
#include "common/backend/cpu/quantized_words.h"
#endif

namespace baton::backend {
namespace {

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
      blocks->scaled_sum = blocks->scale;
      blocks->sum = blocks->first_sum = 0;
      std::memset(blocks->values, 0, sizeof(blocks->values));
      continue;
    }
    blocks->scale = largest / 127.0f;
    const F32x16 inverse = Set1(127.0f / largest);
    int32_t sums[2];
    StoreWhole(Mul(a, inverse), Mul(b, inverse), blocks->values, sums);
    blocks->sum = static_cast<int16_t>(sums[0] + sums[1]);
    blocks->first_sum = static_cast<int16_t>(sums[0]);
    blocks->scaled_sum = blocks->scale * static_cast<float>(blocks->sum);
  }
}

template <Packing kPacking, int kRows, int kVectors>
BATON_INLINE void MulQuantizedRows(int64_t rows, const ActivationBlock* x, int64_t x_stride,
                                   const uint8_t* w, const float* bias, float* out,
                                   int64_t out_stride, const QuantizedRange& range) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return MulQuantizedRows<kPacking, kRows - 1, kVectors>(rows, x, x_stride, w, bias, out,
                                                             out_stride, range);
    }
  }
  if constexpr (IsSuper(kPacking)) {
    MulSuperTile<kPacking, kRows, kVectors>(x, x_stride, w, bias, out, out_stride, range);
  } else {
    MulQuantizedTile<kPacking, kRows, kVectors>(x, x_stride, w, bias, out, out_stride, range);
  }
}

// MulQuantizedPass in tiles of `height` rows, at most kRows, and kVectors.
template <Packing kPacking, int kRows, int kVectors>
void MulQuantizedTiles(const QuantizedSlice& s, const uint8_t* w, int64_t column, int64_t first,
                       int64_t rows, int64_t height, QuantizedRange range, const uint8_t* next) {
  for (int v = 0; v < kPanelColumns / 16; v += kVectors) {
    const int64_t at = column + v * 16;
    if (at >= s.columns) break;
    const int64_t columns = s.columns - at;
    constexpr int kMost = 16 * kVectors;
    range.columns = columns < kMost ? static_cast<int>(columns) : kMost;
    range.first_vector = v;
    for (int64_t row = 0; row < rows; row += height) {
      const int64_t tile = row / height;
      range.ahead =
          v == 0 && tile < kAheadTiles ? next + tile * AheadLines(kPacking) * kLineBytes : nullptr;
      MulQuantizedRows<kPacking, kRows, kVectors>(
          rows - row < height ? rows - row : height, s.x + (first + row) * s.blocks, s.blocks, w,
          s.bias == nullptr ? nullptr : s.bias + at, s.out + (first + row) * s.out_stride + at,
          s.out_stride, range);
    }
  }
}

// One pass of a panel, whose first column is `column` of the slice, for rows [first, first + rows).
// `next`: the weights that follow it.
template <Packing kPacking>
void MulQuantizedPass(const QuantizedSlice& s, const uint8_t* w, int64_t column, int64_t first,
                      int64_t rows, const QuantizedRange& range, const uint8_t* next) {
  // Tiles of nearly equal heights: 8 rows are 4 and 4, not 6 and 2.
  constexpr int kRows = TileRows(kPacking), kWideRows = WideTileRows(kPacking);
  const int64_t tiles = (rows + kRows - 1) / kRows;
  const int64_t height = (rows + tiles - 1) / tiles;
  if constexpr (kWideRows > 0) {
    if (height <= kWideRows) {
      return MulQuantizedTiles<kPacking, kWideRows, 2>(s, w, column, first, rows, height, range,
                                                       next);
    }
  }
  if constexpr (kWideRows < kRows) {
    MulQuantizedTiles<kPacking, kRows, kQuantizedTileVectors>(s, w, column, first, rows, height,
                                                              range, next);
  }
}

template <Packing kPacking>
void MulQuantizedSlice(const QuantizedSlice& s) {
  constexpr int kRows = TileRows(kPacking);
  const bool few_rows = s.rows <= kRows;
#if defined(BATON_WORD_TILES)
  if constexpr (kPacking == Packing::kBytes) {
    // For fewer rows, unpacking costs more than it saves.
    if (s.rows > 2 * kRows && s.group_blocks <= kWordPassBlocks) return MulQuantizedWords(s);
  }
#endif
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
                                      .zero = ZeroOf(kPacking),
                                      .ahead = nullptr};
        const uint8_t* next =
            w + (range.end - range.begin) *
                    (BlockBytes(kPacking) + HeaderBytes(kPacking) / s.group_blocks);
        if constexpr (kPacking != Packing::kBytes) {
          // Once for all tiles of rows. For a few tiles it gains nothing; small ones are few
          // sooner.
          constexpr int kFewTiles = kQuantizedTileVectors == 1     ? 1
                                    : kPacking == Packing::kSuper4 ? 4
                                                                   : 2;
          if (s.rows > kFewTiles * kRows && small_groups) {
            constexpr Packing kTo = UnpackedOf(kPacking);
            alignas(64) uint8_t unpacked[kPassBlocks * (BlockBytes(kTo) + HeaderBytes(kTo))];
            if constexpr (IsSuper(kPacking)) {
              UnpackSuper<kPacking>(w, range, unpacked);
            } else {
              Unpack<kPacking>(w, range, unpacked);
            }
            MulQuantizedPass<kTo>(s, unpacked, column, first, rows, range, next);
            continue;
          }
        }
        MulQuantizedPass<kPacking>(s, w, column, first, rows, range, next);
      }
    }
  }
}

// Calls f.template operator()<Packing>() with that of the slice.
template <class F>
BATON_INLINE void WithPacking(const QuantizedSlice& slice, F f) {
  if (slice.super_blocks) {
    if (slice.bits == 4) return f.template operator()<Packing::kSuper4>();
    if (slice.bits == 5) return f.template operator()<Packing::kSuper5>();
    return f.template operator()<Packing::kSuper6>();
  }
  if (slice.fp4) return f.template operator()<Packing::kFp4>();
  if (slice.bits == 8) return f.template operator()<Packing::kBytes>();
  if (slice.zeros) return f.template operator()<Packing::kNibblesAndZeros>();
  return f.template operator()<Packing::kNibbles>();
}

void MatMulQuantized(const QuantizedSlice& slice) {
  WithPacking(slice, [&]<Packing kPacking>() { MulQuantizedSlice<kPacking>(slice); });
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_QUANTIZED_KERNELS_H_
