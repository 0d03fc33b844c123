// Products of bfloat16 panels with AMX. For kernels_amx.cc only; see simd16.h.
//
// TDPBF16PS adds 16 pairs of k to each sum in an order of its own, the same for all rows; we give it
// k in ascending steps of 32 from a sum of 0, so the bits are those of every other kernel that does
// (oneDNN's among them), for any number of rows.
#ifndef BATON_COMMON_BACKEND_CPU_AMX_MATMUL_H_
#define BATON_COMMON_BACKEND_CPU_AMX_MATMUL_H_

#include "common/backend/cpu/amx_tiles.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/matmul_kernels.h"

namespace baton::backend {
namespace {

constexpr int64_t kAmxStep = 32;                                // k of one tile operation
constexpr int64_t kStepElements = kAmxStep * kPanelColumns;     // of a panel
constexpr int64_t kPanelRowBytes = kPanelColumns * 2 * 2;       // one pair of k
constexpr int64_t kPanelsInCache = 12;  // x kInBlock x 64 columns: 768 KiB of second-level cache

struct AmxRows {
  const uint16_t* x;
  int64_t x_stride;
  float* out;
  int64_t out_stride;
  int rows;  // at most 16 for MulRowOfTiles, 32 for MulSquare
};

// Up to 16 rows x one panel, all of k: the panel passes once, as it lies in memory, which is all that
// decoding waits for.
BATON_INLINE void MulRowOfTiles(const AmxRows& a, const uint16_t* w, int64_t steps, float* sums,
                                int64_t sums_stride) {
  constexpr int64_t kAhead = 8 * kStepElements;
  const int64_t x_bytes = a.x_stride * 2;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < steps; ++step, w += kStepElements) {
    for (int64_t i = 0; i < kStepElements; i += 32) _mm_prefetch(w + kAhead + i, _MM_HINT_T1);
    _tile_loadd(4, a.x + step * kAmxStep, x_bytes);
    _tile_loadd(5, w, kPanelRowBytes);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, w + 32, kPanelRowBytes);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, w + 64, kPanelRowBytes);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, w + 96, kPanelRowBytes);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, sums, sums_stride * 4);
  _tile_stored(1, sums + 16, sums_stride * 4);
  _tile_stored(2, sums + 32, sums_stride * 4);
  _tile_stored(3, sums + 48, sums_stride * 4);
}

// 32 rows or fewer x half a panel, one block of k. Below 17 rows the lower tiles work for nothing.
BATON_INLINE void MulSquare(const AmxRows& a, const uint16_t* w, int64_t steps, bool first,
                            float* sums, int64_t sums_stride) {
  const int64_t x_bytes = a.x_stride * 2, sums_bytes = sums_stride * 4;
  const uint16_t* lower_x = a.rows > 16 ? a.x + 16 * a.x_stride : a.x;
  float* lower_sums = sums + 16 * sums_stride;
  if (first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, sums_bytes);
    _tile_loadd(1, sums + 16, sums_bytes);
    _tile_loadd(2, lower_sums, sums_bytes);
    _tile_loadd(3, lower_sums + 16, sums_bytes);
  }
  for (int64_t step = 0; step < steps; ++step, w += kStepElements) {
    _tile_loadd(6, w, kPanelRowBytes);
    _tile_loadd(4, a.x + step * kAmxStep, x_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + 32, kPanelRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower_x + step * kAmxStep, x_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, sums_bytes);
  _tile_stored(1, sums + 16, sums_bytes);
  _tile_stored(2, lower_sums, sums_bytes);
  _tile_stored(3, lower_sums + 16, sums_bytes);
}

BATON_INLINE void CopyColumns(const float* from, int64_t from_stride, int rows, int columns,
                              float* to, int64_t to_stride) {
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < columns; c += 16) {
      StoreColumns(LoadColumns(from + r * from_stride, c, columns), to + r * to_stride, c, columns);
    }
  }
}

BATON_INLINE void AddBias(const MatMulSlice& s) {
  const int columns = static_cast<int>(s.columns);
  for (int64_t r = 0; r < s.rows; ++r) {
    float* out = s.out + r * s.out_stride;
    for (int c = 0; c < columns; c += 16) {
      const F32x16 sum = LoadColumns(out, c, columns);
      StoreColumns(Add(sum, LoadColumns(s.bias, c, columns)), out, c, columns);
    }
  }
}

void MulFewRows(const MatMulSlice& s) {
  TileSession tiles;
  tiles.ConfigureRow(static_cast<int>(s.rows));
  alignas(64) float sums[16 * kPanelColumns];
  const AmxRows rows = {static_cast<const uint16_t*>(s.x), s.x_stride, s.out, s.out_stride,
                        static_cast<int>(s.rows)};
  const uint16_t* w = static_cast<const uint16_t*>(s.panels);
  for (int64_t c = 0; c < s.columns; c += kPanelColumns, w += s.in * kPanelColumns) {
    const int columns = static_cast<int>(s.columns - c < 64 ? s.columns - c : 64);
    if (columns == kPanelColumns) {
      MulRowOfTiles(rows, w, s.in / kAmxStep, s.out + c, s.out_stride);
    } else {
      MulRowOfTiles(rows, w, s.in / kAmxStep, sums, kPanelColumns);
      CopyColumns(sums, kPanelColumns, rows.rows, columns, s.out + c, s.out_stride);
    }
  }
}

// Blocks of k from the outside in, then rows, then columns: the weights of a block stay in the
// second-level cache, the 32 rows of x in the first.
void MulManyRows(const MatMulSlice& s) {
  TileSession tiles;
  const int64_t panel_size = s.in * kPanelColumns;
  alignas(64) float sums[32 * 32] = {};
  int rows_configured = 0;
  for (int64_t k = 0; k < s.in; k += kInBlock) {
    const int64_t steps = (s.in - k < kInBlock ? s.in - k : kInBlock) / kAmxStep;
    for (int64_t row = 0; row < s.rows; row += 32) {
      const int rows = static_cast<int>(s.rows - row < 32 ? s.rows - row : 32);
      if (rows != rows_configured) {
        tiles.ConfigureSquare(rows < 16 ? rows : 16, rows <= 16 ? 1 : rows - 16);
        rows_configured = rows;
      }
      AmxRows a = {static_cast<const uint16_t*>(s.x) + row * s.x_stride + k, s.x_stride,
                   s.out + row * s.out_stride, s.out_stride, rows};
      for (int64_t c = 0; c < s.columns; c += 32) {
        const uint16_t* w = static_cast<const uint16_t*>(s.panels) +
                            c / kPanelColumns * panel_size + k * kPanelColumns +
                            c % kPanelColumns * 2;
        const int columns = static_cast<int>(s.columns - c < 32 ? s.columns - c : 32);
        if (columns == 32 && rows > 16) {
          MulSquare(a, w, steps, k == 0, a.out + c, a.out_stride);
          continue;
        }
        // The edge: through a square of its own, so that no tile reaches beyond the matrix.
        if (k > 0) CopyColumns(a.out + c, a.out_stride, rows, columns, sums, 32);
        MulSquare(a, w, steps, k == 0, sums, 32);
        CopyColumns(sums, 32, rows, columns, a.out + c, a.out_stride);
      }
    }
  }
}

void MatMulAmx(const MatMulSlice& slice) {
  if (slice.rows <= 16) {
    MulFewRows(slice);
  } else {
    MatMulSlice part = slice;
    constexpr int64_t kColumns = kPanelsInCache * kPanelColumns;
    for (int64_t c = 0; c < slice.columns; c += kColumns) {
      part.columns = slice.columns - c < kColumns ? slice.columns - c : kColumns;
      part.panels = static_cast<const uint16_t*>(slice.panels) + c * slice.in;
      part.out = slice.out + c;
      MulManyRows(part);
    }
  }
  if (slice.bias != nullptr) AddBias(slice);
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_AMX_MATMUL_H_
