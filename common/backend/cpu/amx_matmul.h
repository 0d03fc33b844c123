// Products of bfloat16 panels with AMX. For kernels_amx.cc only; see simd16.h.
//
// TDPBF16PS adds 16 pairs of k to each sum in a fixed order, the same for all rows. It gets k in
// ascending steps of 32, from a sum of 0, so the bits are the same for any number of rows, and
// those of other kernels that do so (oneDNN's among them).
#ifndef BATON_COMMON_BACKEND_CPU_AMX_MATMUL_H_
#define BATON_COMMON_BACKEND_CPU_AMX_MATMUL_H_

#include "common/backend/cpu/amx_tiles.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/matmul_kernels.h"

namespace baton::backend {
namespace {

constexpr int64_t kAmxStep = 32;                             // k of one tile operation
constexpr int64_t kStepElements = kAmxStep * kPanelColumns;  // of a panel, and of packed rows
constexpr int64_t kPanelRowBytes = kPanelColumns * 2 * 2;    // one pair of k
// Weights that stay in the second-level cache while all rows pass by.
constexpr int64_t kCachedElements = 512 << 10;

// Up to 16 rows x one panel. The panel is read once, in memory order: decoding is bound by that.
BATON_INLINE void MulFewRows(const uint16_t* x, int64_t x_stride, const uint16_t* w, int64_t steps,
                             float* sums, int64_t sums_stride) {
  constexpr int64_t kAhead = 4 * kStepElements;
  const int64_t x_bytes = x_stride * 2;
  __m512i touched = _mm512_setzero_si512();
  _tile_zero(0);
  _tile_zero(1);
  for (int64_t step = 0; step < steps; ++step, w += kStepElements) {
    // Ordinary loads, of which many more can wait for memory at a time than tile loads: an eighth
    // faster here than prefetches alone.
    for (int64_t i = 0; i < kStepElements; i += 32) {
      _mm_prefetch(w + kAhead + i, _MM_HINT_T0);
      touched = _mm512_or_si512(touched, _mm512_load_si512(w + i));
    }
    _tile_loadd(4, x + step * kAmxStep, x_bytes);
    _tile_loadd(6, w, kPanelRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + 32, kPanelRowBytes);
    _tile_dpbf16ps(1, 4, 7);
  }
  asm volatile("" : : "v"(touched));  // keeps the loads
  _tile_stored(0, sums, sums_stride * 4);
  _tile_stored(1, sums + 16, sums_stride * 4);
}

// A square of 32 packed rows x one panel; without `lower`, only the first 16 rows. `fetch`: the
// panel comes from memory.
template <bool kLower>
BATON_INLINE void MulSquare(const uint16_t* x, const uint16_t* w, int64_t steps, bool fetch,
                            float* sums, int64_t sums_stride) {
  constexpr int64_t kAhead = 16 * kStepElements;
  const int64_t sums_bytes = sums_stride * 4;
  _tile_zero(0);
  _tile_zero(1);
  if (kLower) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t step = 0; step < steps; ++step, w += kStepElements, x += kStepElements) {
    if (fetch) {
      for (int64_t i = 0; i < kStepElements; i += 32) _mm_prefetch(w + kAhead + i, _MM_HINT_T1);
    }
    _tile_loadd(6, w, kPanelRowBytes);
    _tile_loadd(4, x, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + 32, kPanelRowBytes);
    _tile_dpbf16ps(1, 4, 7);
    if (kLower) {
      _tile_loadd(5, x + 16 * 32, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, sums_bytes);
  _tile_stored(1, sums + 16, sums_bytes);
  if (kLower) {
    _tile_stored(2, sums + 16 * sums_stride, sums_bytes);
    _tile_stored(3, sums + 16 * sums_stride + 16, sums_bytes);
  }
}

void PackRowsAmx(const uint16_t* x, int64_t x_stride, int64_t rows, int64_t in, int64_t padded_in,
                 uint16_t* packed) {
  for (int64_t r = 0; r < kSquareRows; ++r) {
    const uint16_t* from = x + r * x_stride;
    uint16_t* to = packed + r * kAmxStep;
    for (int64_t k = 0; k < padded_in; k += kAmxStep, to += kSquareRows * kAmxStep) {
      const int64_t left = r < rows ? in - k : 0;
      const __mmask32 mask =
          left >= 32 ? ~__mmask32{0} : (__mmask32{1} << (left > 0 ? left : 0)) - 1;
      _mm512_store_si512(to, _mm512_maskz_loadu_epi16(mask, from + k));
    }
  }
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

void MulFew(const MatMulSlice& s) {
  TileSession tiles;
  const int rows = static_cast<int>(s.rows);
  tiles.Configure(rows, 0);
  alignas(64) float sums[16 * kPanelColumns];
  const uint16_t* x = static_cast<const uint16_t*>(s.x);
  const uint16_t* w = static_cast<const uint16_t*>(s.panels);
  for (int64_t c = 0; c < s.columns; c += kPanelColumns, w += s.in * kPanelColumns) {
    if (s.columns - c >= kPanelColumns) {
      MulFewRows(x, s.x_stride, w, s.in / kAmxStep, s.out + c, s.out_stride);
    } else {
      MulFewRows(x, s.x_stride, w, s.in / kAmxStep, sums, kPanelColumns);
      CopyColumns(sums, kPanelColumns, rows, static_cast<int>(s.columns - c), s.out + c,
                  s.out_stride);
    }
  }
}

// A square of rows against all panels of the slice, which stay in cache.
void MulSquareOfRows(const MatMulSlice& s, int64_t row) {
  const uint16_t* x = static_cast<const uint16_t*>(s.x) + row * s.in;
  const uint16_t* w = static_cast<const uint16_t*>(s.panels);
  const int rows = static_cast<int>(s.rows - row < kSquareRows ? s.rows - row : kSquareRows);
  const int64_t steps = s.in / kAmxStep;
  float* out = s.out + row * s.out_stride;
  alignas(64) float sums[kSquareRows * kPanelColumns];
  for (int64_t c = 0; c < s.columns; c += kPanelColumns, w += s.in * kPanelColumns) {
    const int columns =
        static_cast<int>(s.columns - c < kPanelColumns ? s.columns - c : kPanelColumns);
    if (rows == kSquareRows && columns == kPanelColumns) {
      MulSquare<true>(x, w, steps, row == 0, out + c, s.out_stride);
      continue;
    }
    // The edge: through a separate square, so that no tile reaches beyond the matrix.
    if (rows > 16) {
      MulSquare<true>(x, w, steps, row == 0, sums, kPanelColumns);
    } else {
      MulSquare<false>(x, w, steps, row == 0, sums, kPanelColumns);
    }
    CopyColumns(sums, kPanelColumns, rows, columns, out + c, s.out_stride);
  }
}

void MulMany(const MatMulSlice& s) {
  TileSession tiles;
  tiles.Configure(16, 16);
  const int64_t panels = kCachedElements / (s.in * kPanelColumns);
  const int64_t columns_a_pass = (panels > 1 ? panels : 1) * kPanelColumns;
  MatMulSlice part = s;
  for (int64_t c = 0; c < s.columns; c += columns_a_pass) {
    part.columns = s.columns - c < columns_a_pass ? s.columns - c : columns_a_pass;
    part.panels = static_cast<const uint16_t*>(s.panels) + c * s.in;
    part.out = s.out + c;
    for (int64_t row = 0; row < s.rows; row += kSquareRows) MulSquareOfRows(part, row);
  }
}

void MatMulAmx(const MatMulSlice& slice) {
  if (slice.x_stride > 0) {
    MulFew(slice);
  } else {
    MulMany(slice);
  }
  if (slice.bias != nullptr) AddBias(slice);
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_AMX_MATMUL_H_
