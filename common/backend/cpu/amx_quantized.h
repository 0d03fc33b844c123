// Products of 8-bit activations and weights of few bits with AMX. The whole numbers are exact and
// the rest is the chain of quantized_kernels.h, so the bits are the same. For kernels_amx.cc only;
// see simd16.h.
#ifndef BATON_COMMON_BACKEND_CPU_AMX_QUANTIZED_H_
#define BATON_COMMON_BACKEND_CPU_AMX_QUANTIZED_H_

#include "common/backend/cpu/amx_tiles.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/quantized_kernels.h"

namespace baton::backend {
namespace {

// With fewer rows VNNI multiplies. Not measured: by a count of instructions, the work of a tile
// that does not depend on its rows is about that of six rows with VNNI.
constexpr int64_t kAmxRowsFrom = 9;
constexpr int kAmxRows = 16;  // of a tile

// A block of a panel for TDPBSSD: 32 of `in` as [8][32 columns][4], less their zeros. a, b: what
// the sums are multiplied by, as LoadFactors says; of weights without super-blocks a is the scale.
struct alignas(64) AmxBlock {
  float a[kPanelColumns], b[kPanelColumns];
  uint8_t values[kQuantizedBlock * kPanelColumns];
};

template <Packing kPacking, int kPair>
BATON_INLINE void UnpackPairForAmx(const uint8_t* values, int vector, U8x64 minus_zero,
                                   AmxBlock* out) {
  U8x64 first, second;
  LoadPair<kPacking, kPair>(values, vector, first, second);
  uint8_t* to = out->values + kPair * 256 + vector * 64;
  StoreBytes(AddBytes(first, minus_zero), to);
  StoreBytes(AddBytes(second, minus_zero), to + 128);
}

// Block `index` of a panel.
template <Packing kPacking>
BATON_INLINE void UnpackForAmx(const QuantizedSlice& s, const uint8_t* panel, int64_t index,
                               AmxBlock* out) {
  const int64_t group = index / s.group_blocks;
  const uint8_t* header =
      panel + group * (s.group_blocks * BlockBytes(kPacking) + HeaderBytes(kPacking));
  const uint8_t* w = header + HeaderBytes(kPacking) + index % s.group_blocks * BlockBytes(kPacking);
  for (int v = 0; v < 2; ++v) {
    U8x64 minus_zero = _mm512_setzero_si512();
    if constexpr (IsSuper(kPacking)) {
      F32x16 a, b;
      LoadFactors<kPacking>(header, w, v * 16, a, b);
      Store(a, out->a + v * 16);
      Store(b, out->b + v * 16);
      if constexpr (IsOf6Bits(kPacking)) minus_zero = _mm512_set1_epi8(-32);
    } else {
      Store(LoadScales<kPacking>(header, s.scale_element, v * 16), out->a + v * 16);
      if constexpr (kPacking == Packing::kBytes) {
        minus_zero = _mm512_set1_epi8(-128);
      } else if constexpr (kPacking == Packing::kNibbles) {
        minus_zero = _mm512_set1_epi8(-8);
      } else if constexpr (kPacking == Packing::kFp4) {
        minus_zero = _mm512_set1_epi8(-kFp4Zero);
      } else {
        minus_zero =
            AddBytes(SpreadBytes(header + kQuantizedScaleBytes + v * 16), _mm512_set1_epi8(-16));
      }
    }
    const uint8_t* values = w + FactorBytes(kPacking);
    UnpackPairForAmx<kPacking, 0>(values, v, minus_zero, out);
    UnpackPairForAmx<kPacking, 1>(values, v, minus_zero, out);
    UnpackPairForAmx<kPacking, 2>(values, v, minus_zero, out);
    UnpackPairForAmx<kPacking, 3>(values, v, minus_zero, out);
  }
}

// 16 rows of activations and their blocks of one pass.
struct AmxRows {
  const int8_t* values;  // of the first row and block
  int64_t row_bytes;     // from a row to the next
  int64_t block_bytes;   // from a block to the next
  const ActivationBlock* x;
  int64_t x_stride;
  int rows;  // of x; the tile's other rows have values of 0
  float* out;
  int64_t out_stride;
};

struct AmxPass {
  const AmxBlock* blocks;
  int64_t count;
  bool first, last;      // of the panel's passes
  const uint8_t* ahead;  // what the next pass unpacks: the first tiles prefetch it
  int ahead_lines;       // a step; 0: not this tile
};

// 6 bits: the halves of a block have factors of their own, so a step is half a block. Else a block.
template <bool kSix>
constexpr int kStepsABlock = kSix ? 2 : 1;

template <bool kSix>
BATON_INLINE void SumStep(const AmxRows& rows, const AmxPass& pass, int64_t step, int vector,
                          int32_t* sums) {
  const int64_t block = step / kStepsABlock<kSix>, half = step % kStepsABlock<kSix>;
  const int8_t* x = rows.values + block * rows.block_bytes + half * 16;
  const uint8_t* w = pass.blocks[block].values + half * 512 + vector * 64;
  // Two sets of tiles in turn.
  if (step % 2 == 0) {
    _tile_zero(0);
    _tile_loadd(4, x, rows.row_bytes);
    _tile_loadd(6, w, 2 * 64);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, sums, 64);
  } else {
    _tile_zero(1);
    _tile_loadd(5, x, rows.row_bytes);
    _tile_loadd(7, w, 2 * 64);
    _tile_dpbssd(1, 5, 7);
    _tile_stored(1, sums, 64);
  }
}

// Calls f(r, row, total[r]) for 16 rows. row: of ActivationBlocks, from `x` on; the last one is
// repeated for rows that x lacks. A loop over r would keep the totals in memory (GCC 12).
template <bool kWhole, int r = 0, class F>
BATON_INLINE void ForAmxRows(const AmxRows& rows, const ActivationBlock* x,
                             F32x16 (&total)[kAmxRows], F f) {
  f(r, *x, total[r]);
  if constexpr (r + 1 < kAmxRows) {
    if (kWhole || r + 1 < rows.rows) x += rows.x_stride;
    ForAmxRows<kWhole, r + 1>(rows, x, total, f);
  }
}

// 16 rows x 16 columns. kLeast: of 4 and 5 bits in super-blocks. kWhole: x has all 16 rows.
template <bool kSix, bool kLeast, bool kWhole>
void MulAmxTile(const AmxRows& rows, const AmxPass& pass, int vector, const float* bias,
                int columns) {
  const auto mask = static_cast<__mmask16>((1 << columns) - 1);
  const __mmask16 load = pass.first ? __mmask16{0} : mask;
  F32x16 total[kAmxRows];
  ForAmxRows<kWhole>(rows, rows.x, total, [&](int r, const ActivationBlock&, F32x16& sum) {
    const int row = kWhole || r < rows.rows ? r : 0;
    sum = {_mm512_maskz_loadu_ps(load, rows.out + row * rows.out_stride)};
  });
  const uint8_t* ahead = pass.ahead;
  // The sums of two steps: while a step's are folded, the tiles add the next one's up.
  alignas(64) int32_t sums[2][kAmxRows * 16];
  const int64_t steps = pass.count * kStepsABlock<kSix>;
  SumStep<kSix>(rows, pass, 0, vector, sums[0]);
  for (int64_t step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      SumStep<kSix>(rows, pass, step + 1, vector, sums[(step + 1) % 2]);
    }
    for (int i = 0; i < pass.ahead_lines; ++i) __builtin_prefetch(ahead + i * kLineBytes);
    ahead += pass.ahead_lines * kLineBytes;
    const int64_t block = step / kStepsABlock<kSix>;
    const AmxBlock& w = pass.blocks[block];
    const int32_t* sum = sums[step % 2];
    const bool second = kSix && step % 2 == 1;
    const F32x16 factor = Load((second ? w.b : w.a) + vector * 16);
    ForAmxRows<kWhole>(rows, rows.x + block, total,
                       [&](int r, const ActivationBlock& x, F32x16& of_row) {
                         const F32x16 whole = {_mm512_cvtepi32_ps(_mm512_load_si512(sum + r * 16))};
                         of_row = Fma(Mul(whole, Set1(x.scale)), factor, of_row);
                       });
    if constexpr (kLeast) {
      const F32x16 least = Load(w.b + vector * 16);
      ForAmxRows<kWhole>(rows, rows.x + block, total,
                         [&](int, const ActivationBlock& x, F32x16& of_row) {
                           of_row = Fma(Set1(x.scaled_sum), least, of_row);
                         });
    }
  }
  // Adding 0 could turn -0 into 0.
  const bool biased = pass.last && bias != nullptr;
  const __m512 of_columns = biased ? _mm512_maskz_loadu_ps(mask, bias) : _mm512_setzero_ps();
  const __mmask16 add = biased ? mask : __mmask16{0};
  ForAmxRows<kWhole>(rows, rows.x, total, [&](int r, const ActivationBlock&, F32x16& sum) {
    const __mmask16 store = kWhole || r < rows.rows ? mask : __mmask16{0};
    sum.v = _mm512_mask_add_ps(sum.v, add, sum.v, of_columns);
    _mm512_mask_storeu_ps(rows.out + r * rows.out_stride, store, sum.v);
  });
}

// Fewer than 16 rows, copied so that tiles can load 16: as [16 rows][kPassBlocks][32].
BATON_INLINE void CopyRowsForAmx(AmxRows& rows, int64_t blocks, int8_t* copy) {
  constexpr int64_t kRowBytes = kPassBlocks * kQuantizedBlock;
  for (int r = 0; r < rows.rows; ++r) {
    for (int64_t b = 0; b < blocks; ++b) {
      std::memcpy(copy + r * kRowBytes + b * kQuantizedBlock, rows.x[r * rows.x_stride + b].values,
                  kQuantizedBlock);
    }
  }
  std::memset(copy + rows.rows * kRowBytes, 0,
              static_cast<size_t>((kAmxRows - rows.rows) * kRowBytes));
  rows.values = copy;
  rows.row_bytes = kRowBytes;
  rows.block_bytes = kQuantizedBlock;
}

// All rows of the slice from `first` on, at most kQuantizedRowBlock, and one pass of a panel.
template <Packing kPacking>
BATON_INLINE void MulAmxPass(const QuantizedSlice& s, int64_t first, int64_t column, int64_t begin,
                             AmxPass pass) {
  constexpr bool kSix = IsOf6Bits(kPacking);
  constexpr bool kLeast = IsSuper(kPacking) && !kSix;
  alignas(64) int8_t copy[kAmxRows * kPassBlocks * kQuantizedBlock];
  const int64_t end = s.rows - first < kQuantizedRowBlock ? s.rows : first + kQuantizedRowBlock;
  for (int64_t row = first; row < end; row += kAmxRows) {
    const ActivationBlock* x = s.x + row * s.blocks + begin;
    AmxRows rows = {.values = x->values,
                    .row_bytes = s.blocks * int64_t{sizeof(ActivationBlock)},
                    .block_bytes = sizeof(ActivationBlock),
                    .x = x,
                    .x_stride = s.blocks,
                    .rows = static_cast<int>(end - row < kAmxRows ? end - row : kAmxRows),
                    .out = nullptr,
                    .out_stride = s.out_stride};
    if (rows.rows < kAmxRows) CopyRowsForAmx(rows, pass.count, copy);
    TilesReadMemory(copy);
    for (int v = 0; v < 2; ++v) {
      const int64_t at = column + v * 16;
      if (at >= s.columns) break;
      const int columns = static_cast<int>(s.columns - at < 16 ? s.columns - at : 16);
      const float* bias = s.bias == nullptr ? nullptr : s.bias + at;
      rows.out = s.out + row * s.out_stride + at;
      if (rows.rows == kAmxRows) {
        MulAmxTile<kSix, kLeast, true>(rows, pass, v, bias, columns);
      } else {
        MulAmxTile<kSix, kLeast, false>(rows, pass, v, bias, columns);
      }
      pass.ahead += pass.ahead_lines * kLineBytes * pass.count * kStepsABlock<kSix>;
    }
    pass.ahead_lines = 0;
  }
}

template <Packing kPacking>
void MulQuantizedAmx(const QuantizedSlice& s) {
  constexpr int kHalves = kStepsABlock<IsOf6Bits(kPacking)>;
  TileSession tiles;
  tiles.ConfigureForBytes(kQuantizedBlock / kHalves);
  alignas(64) AmxBlock blocks[kPassBlocks];
  for (int64_t first = 0; first < s.rows; first += kQuantizedRowBlock) {
    for (int64_t column = 0; column < s.columns; column += kPanelColumns) {
      const uint8_t* panel = s.panels + column / kPanelColumns * s.panel_bytes;
      for (int64_t begin = 0; begin < s.blocks; begin += kPassBlocks) {
        const int64_t left = s.blocks - begin;
        const int64_t count = left < kPassBlocks ? left : kPassBlocks;
        for (int64_t i = 0; i < count; ++i) {
          UnpackForAmx<kPacking>(s, panel, begin + i, &blocks[i]);
        }
        TilesReadMemory(blocks);
        // Both tiles of the first 16 rows prefetch half of the next pass.
        const int64_t bytes = s.panel_bytes * count / s.blocks;
        const int64_t line_a_step = 2 * kLineBytes * count * kHalves;
        MulAmxPass<kPacking>(
            s, first, column, begin,
            {.blocks = blocks,
             .count = count,
             .first = begin == 0,
             .last = left <= kPassBlocks,
             .ahead = panel + s.panel_bytes * (begin + count) / s.blocks,
             .ahead_lines = static_cast<int>((bytes + line_a_step - 1) / line_a_step)});
      }
    }
  }
}

void MatMulQuantizedAmx(const QuantizedSlice& slice) {
  if (slice.rows < kAmxRowsFrom) return MatMulQuantized(slice);
  WithPacking(slice, [&]<Packing kPacking>() { MulQuantizedAmx<kPacking>(slice); });
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_AMX_QUANTIZED_H_
