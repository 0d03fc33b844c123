// Matrix products over packed panels. For kernels_*.cc only; see simd16.h.
//
// A tile of rows x vectors of accumulators stays in registers over one block of k and is kept in
// `out` between blocks, so that every element is one chain of additions in the order of k, in
// any tile.
#ifndef BATON_COMMON_BACKEND_CPU_MATMUL_KERNELS_H_
#define BATON_COMMON_BACKEND_CPU_MATMUL_KERNELS_H_

#include <type_traits>

#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/simd16.h"

namespace baton::backend {
namespace {

#if defined(__AVX512F__)
constexpr int kTileRows = 12;
constexpr int kTileVectors = 2;
#else  // 16 registers of half a vector
constexpr int kTileRows = 6;
constexpr int kTileVectors = 1;
#endif
constexpr int kVectorsPerPanel = kPanelColumns / 16;
// So few rows take all vectors of a panel: with fewer sums, each addition would wait for the one
// before it.
constexpr int kWideRows = 2;
// A panel's block of k stays in the second-level cache while all rows pass by.
constexpr int64_t kInBlock = 512;
// Rows that fit beside it.
constexpr int64_t kRowBlock = 240;

// Products of float32 with weights of kElement.
template <Element kElement>
struct MulF32 {
  using X = float;
  using W = std::conditional_t<kElement == Element::kF32, float, uint16_t>;
  static constexpr int kStep = 1;  // k per step
  static BATON_INLINE F32x16 Weights(const W* w) {
    if constexpr (kElement == Element::kF32) return Load(w);
    if constexpr (kElement == Element::kBF16) return LoadBF16(w);
    if constexpr (kElement == Element::kF16) return LoadF16(w);
  }
  static BATON_INLINE F32x16 Add(const float* x, F32x16 w, F32x16 sum) {
    return Fma(Set1(*x), w, sum);
  }
};

struct PanelBlock {
  int64_t steps;     // of k, in this block
  bool first, last;  // block of k
  int columns;       // of this tile, from out and bias on
};

BATON_INLINE F32x16 LoadColumns(const float* p, int at, int columns) {
  if (columns - at >= 16) return Load(p + at);
  return columns > at ? LoadPart(p + at, columns - at) : Zero();
}

BATON_INLINE void StoreColumns(F32x16 a, float* p, int at, int columns) {
  if (columns - at >= 16) return Store(a, p + at);
  if (columns > at) StorePart(a, p + at, columns - at);
}

template <class Mul, int kRows, int kVectors>
BATON_NO_INLINE void MulTile(const typename Mul::X* x, int64_t x_stride, const typename Mul::W* w,
                             const float* bias, float* out, int64_t out_stride, PanelBlock block) {
  F32x16 sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = block.first ? Zero() : LoadColumns(out + r * out_stride, v * 16, block.columns);
    }
  }
  constexpr int64_t kPrefetch = 48 * kPanelColumns * Mul::kStep;
  for (int64_t k = 0; k < block.steps; ++k, x += Mul::kStep, w += kPanelColumns * Mul::kStep) {
    for (int v = 0; v < kVectors; ++v) __builtin_prefetch(w + kPrefetch + v * 16 * Mul::kStep);
    decltype(Mul::Weights(w)) weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = Mul::Weights(w + v * 16 * Mul::kStep);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        sum[r][v] = Mul::Add(x + r * x_stride, weights[v], sum[r][v]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      if (block.last && bias != nullptr) {
        sum[r][v] = baton::backend::Add(sum[r][v], LoadColumns(bias, v * 16, block.columns));
      }
      StoreColumns(sum[r][v], out + r * out_stride, v * 16, block.columns);
    }
  }
}

template <class Mul, int kRows, int kVectors>
BATON_INLINE void MulTileOf(int64_t rows, const typename Mul::X* x, int64_t x_stride,
                            const typename Mul::W* w, const float* bias, float* out,
                            int64_t out_stride, PanelBlock block) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      return MulTileOf<Mul, kRows - 1, kVectors>(rows, x, x_stride, w, bias, out, out_stride,
                                                 block);
    }
  }
  MulTile<Mul, kRows, kVectors>(x, x_stride, w, bias, out, out_stride, block);
}

template <class Mul, int kVectors>
BATON_INLINE void MulRows(int64_t rows, const typename Mul::X* x, int64_t x_stride,
                          const typename Mul::W* w, const float* bias, float* out,
                          int64_t out_stride, PanelBlock block) {
  // Tiles of nearly equal heights: 8 rows are 4 and 4, not 6 and 2.
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t height = (rows + tiles - 1) / tiles;
  for (int64_t r = 0; r < rows; r += height) {
    MulTileOf<Mul, kTileRows, kVectors>(rows - r < height ? rows - r : height, x + r * x_stride,
                                        x_stride, w, bias, out + r * out_stride, out_stride, block);
  }
}

template <class Mul>
void MulSlice(const MatMulSlice& s) {
  using X = typename Mul::X;
  using W = typename Mul::W;
  const int64_t steps = (s.in + Mul::kStep - 1) / Mul::kStep;
  const int64_t panel_size = Mul::kStep == 1 ? s.in * kPanelColumns : steps * 2 * kPanelColumns;
  // Few rows: one pass over the weights in memory order. Many: blocks that stay in cache.
  const int64_t steps_a_block = s.rows <= kTileRows ? steps : kInBlock;
  for (int64_t row = 0; row < s.rows; row += kRowBlock) {
    const int64_t rows = s.rows - row < kRowBlock ? s.rows - row : kRowBlock;
    const X* x = static_cast<const X*>(s.x) + row * s.x_stride;
    for (int64_t column = 0; column < s.columns; column += kPanelColumns) {
      const W* panel = static_cast<const W*>(s.panels) + column / kPanelColumns * panel_size;
      for (int64_t step = 0; step < steps; step += steps_a_block) {
        const int64_t left = steps - step;
        PanelBlock block = {left < steps_a_block ? left : steps_a_block, step == 0,
                            left <= steps_a_block, 0};
        const auto tiles = [&]<int kVectors>() {
          constexpr int kColumns = 16 * kVectors;
          for (int64_t at = column; at < column + kPanelColumns && at < s.columns; at += kColumns) {
            const int64_t left = s.columns - at;
            block.columns = static_cast<int>(left < kColumns ? left : kColumns);
            MulRows<Mul, kVectors>(rows, x + step * Mul::kStep, s.x_stride,
                                   panel + (step * kPanelColumns + at - column) * Mul::kStep,
                                   s.bias == nullptr ? nullptr : s.bias + at,
                                   s.out + row * s.out_stride + at, s.out_stride, block);
          }
        };
        if (s.rows <= kWideRows) {
          tiles.template operator()<kVectorsPerPanel>();
        } else {
          tiles.template operator()<kTileVectors>();
        }
      }
    }
  }
}

void MatMulF32(const MatMulSlice& slice) {
  switch (slice.element) {
    case Element::kF32:
      return MulSlice<MulF32<Element::kF32>>(slice);
    case Element::kBF16:
      return MulSlice<MulF32<Element::kBF16>>(slice);
    case Element::kF16:
      return MulSlice<MulF32<Element::kF16>>(slice);
  }
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_MATMUL_KERNELS_H_
