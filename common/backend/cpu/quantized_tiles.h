// The products of one tile: a few rows of 8-bit activations and 16 or 32 columns of a panel. For
// kernels_*.cc only; see quantized_kernels.h.
#ifndef BATON_COMMON_BACKEND_CPU_QUANTIZED_TILES_H_
#define BATON_COMMON_BACKEND_CPU_QUANTIZED_TILES_H_

#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/matmul_kernels.h"
#include "common/backend/cpu/quantized_simd.h"
#include "common/backend/cpu/vector_kernels.h"
#include "common/backend/quantized.h"

namespace baton::backend {
namespace {

// What a tile reads: the forms of panels in kernels.h, and what Unpack makes of nibbles for the
// rows of several tiles. kUnpacked: bytes, less their zeros, with a header of scales alone.
// kUnpackedSuper: no header; a block is 32 floats, each a scale and its factor multiplied, 32 more
// of the least values (of 6 bits: of the second factor), then bytes. kUnpacked4 and kUnpackedSuper4
// are the same with bytes of 4 bits, where that makes a difference.
enum class Packing {
  kBytes,
  kNibbles,
  kNibblesAndZeros,
  kFp4,
  kUnpacked4,
  kUnpacked,
  kSuper4,
  kSuper5,
  kSuper6,
  kUnpackedSuper4,
  kUnpackedSuper,
  kUnpackedSuper6,
};

constexpr bool IsSuper(Packing packing) { return packing >= Packing::kSuper4; }
constexpr bool IsOf6Bits(Packing packing) {
  return packing == Packing::kSuper6 || packing == Packing::kUnpackedSuper6;
}
// Bits of a value as tiles multiply it; not for kBytes. Nibbles with zeros have 16 - zero added;
// those of MXFP4 become their values, up to 24.
constexpr int DotBits(Packing packing) {
  if (IsOf6Bits(packing)) return 6;
  const bool four = packing == Packing::kNibbles || packing == Packing::kUnpacked4 ||
                    packing == Packing::kSuper4 || packing == Packing::kUnpackedSuper4;
  return four ? 4 : 5;
}
constexpr Packing UnpackedOf(Packing packing) {
  if (packing == Packing::kBytes) return packing;
  if (IsOf6Bits(packing)) return Packing::kUnpackedSuper6;
  if (kFourBitTiles && DotBits(packing) == 4) {
    return IsSuper(packing) ? Packing::kUnpackedSuper4 : Packing::kUnpacked4;
  }
  return IsSuper(packing) ? Packing::kUnpackedSuper : Packing::kUnpacked;
}
constexpr bool IsUnpacked(Packing packing) { return UnpackedOf(packing) == packing; }
// Bits of a value beside its nibble.
constexpr int HighBits(Packing packing) {
  return packing == Packing::kSuper6 ? 2 : packing == Packing::kSuper5 ? 1 : 0;
}
constexpr int TileRows(Packing packing) {
  // The factors of super-blocks take registers from the sums.
  return IsSuper(packing) && kQuantizedTileRows > 4 ? 4 : kQuantizedTileRows;
}
// Tiles of at most so many rows take two vectors where others take one.
constexpr int WideTileRows(Packing packing) {
  if (packing == Packing::kBytes) return kWideBytesRows;
  if (IsUnpacked(packing)) return 0;
  return packing == Packing::kSuper5 && kWideTileRows > 0 ? kWideTileRows - 1 : kWideTileRows;
}
constexpr int64_t HeaderBytes(Packing packing) {
  if (packing == Packing::kFp4) return kPanelColumns;
  if (IsSuper(packing) && IsUnpacked(packing)) return 0;
  const bool two = packing == Packing::kNibblesAndZeros || packing == Packing::kSuper4 ||
                   packing == Packing::kSuper5;
  return two ? 2 * kQuantizedScaleBytes : kQuantizedScaleBytes;
}
// Bytes of the factors, which come before the values of a block.
constexpr int64_t FactorBytes(Packing packing) {
  if (!IsSuper(packing)) return 0;
  return 2 * kPanelColumns * (IsUnpacked(packing) ? int64_t{sizeof(float)} : 1);
}
constexpr int64_t BlockBytes(Packing packing) {
  const int bits = IsUnpacked(packing) ? 8 : 4 + HighBits(packing);
  return FactorBytes(packing) + kQuantizedBlock * kPanelColumns * bits / 8;
}
constexpr int ZeroOf(Packing packing) {
  if (IsSuper(packing)) return IsOf6Bits(packing) ? 32 : 0;
  if (packing == Packing::kBytes) return 128 - kByteOffset;
  if (packing == Packing::kFp4) return kFp4Zero;
  return packing == Packing::kNibblesAndZeros ? 16 : 8;
}

// The range of a tile: blocks [begin, end) of the panel, begin and end on borders of groups.
struct QuantizedRange {
  int64_t begin, end;
  int64_t group_blocks;
  int64_t block_count;  // of a row
  Element scale_element;
  int columns;       // of this tile
  int first_vector;  // of this tile in the panel
  int zero;
  // With unpacked weights, the packed ones of the next pass, or null. With each block, the tile
  // prefetches AheadLines from there, then skips the lines of kAheadTiles - 1 other tiles.
  const uint8_t* ahead;
};

// How far ahead of the product weights are asked for.
constexpr int64_t kPrefetchBytes = 4096;
// The first tiles of an unpacked pass prefetch the next pass while they multiply, each a third of
// its lines. If Unpack prefetched all of it, it would wait for memory, and memory would idle while
// the tiles multiply.
constexpr int kAheadTiles = 3;
constexpr int64_t kLineBytes = 64;
// Rows that stay in the second-level cache beside a panel's pass.
constexpr int64_t kQuantizedRowBlock = 240;

// A tile's share of a packed block with its header, at least a third of it.
constexpr int AheadLines(Packing unpacked) {
  if (unpacked == Packing::kBytes) return 6;
  return IsOf6Bits(unpacked) ? 5 : IsSuper(unpacked) ? 4 : 3;
}

template <Packing kPacking>
BATON_INLINE void PrefetchAhead(const uint8_t*& ahead) {
  if (ahead == nullptr) return;
  for (int i = 0; i < AheadLines(kPacking); ++i) __builtin_prefetch(ahead + i * kLineBytes);
  ahead += kAheadTiles * AheadLines(kPacking) * kLineBytes;
}

template <int kRows, int kVectors>
BATON_INLINE void LoadTotals(const float* out, int64_t out_stride, const QuantizedRange& range,
                             F32x16 (&total)[kRows][kVectors]) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      total[r][v] =
          range.begin == 0 ? Zero() : LoadColumns(out + r * out_stride, v * 16, range.columns);
    }
  }
}

template <int kRows, int kVectors>
BATON_INLINE void StoreTotals(F32x16 (&total)[kRows][kVectors], const float* bias, float* out,
                              int64_t out_stride, const QuantizedRange& range) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      if (range.end == range.block_count && bias != nullptr) {
        total[r][v] = Add(total[r][v], LoadColumns(bias, v * 16, range.columns));
      }
      StoreColumns(total[r][v], out + r * out_stride, v * 16, range.columns);
    }
  }
}

template <Packing kPacking, int kStep>
BATON_INLINE U8x64 WithHighBits(U8x64 nibbles, const uint8_t* high, int vector) {
  constexpr int kBits = HighBits(kPacking);
  if constexpr (kBits == 0) {
    return nibbles;
  } else {
    // A byte has those of 8 / kBits steps.
    constexpr int kSteps = 8 / kBits;
    const U8x64 plane = LoadBytes(high + kStep / kSteps * 128 + vector * 64);
    return OrShifted<4 - kBits*(kStep % kSteps)>(nibbles, plane, ((1 << kBits) - 1) << 4);
  }
}

constexpr int64_t kNibbleBytes = kQuantizedBlock * kPanelColumns / 2;  // of a block

// Values of columns [8 * kPair, 8 * kPair + 8) of a block at w: four of them in each of two
// vectors.
template <Packing kPacking, int kPair>
BATON_INLINE void LoadPair(const uint8_t* w, int vector, U8x64& first, U8x64& second) {
  if constexpr (IsUnpacked(kPacking)) {
    first = LoadBytes(w + kPair * 256 + vector * 64);
    second = LoadBytes(w + kPair * 256 + 128 + vector * 64);
  } else {
    const U8x64 bytes = LoadBytes(w + kPair * 128 + vector * 64);
    if constexpr (kPacking == Packing::kFp4) {
      first = Fp4Bytes(LowNibbles(bytes));
      second = Fp4Bytes(HighNibbles(bytes));
      return;
    }
    first = WithHighBits<kPacking, 2 * kPair>(LowNibbles(bytes), w + kNibbleBytes, vector);
    second = WithHighBits<kPacking, 2 * kPair + 1>(HighNibbles(bytes), w + kNibbleBytes, vector);
  }
}

// Products of a sum: a block's, or of 6 bits a half's.
template <Packing kPacking>
constexpr int kDotsOfSum = IsOf6Bits(kPacking) ? 4 : 8;

// Adds the products of columns [4 * kStep, 4 * kStep + 4) of a block of bytes.
template <Packing kPacking, int kStep, int kRows, int kVectors>
BATON_INLINE void AddStep(const ActivationBlock* x, int64_t x_stride, const uint8_t* w,
                          int first_vector, DotSum (&sum)[kRows][kVectors]) {
  constexpr int kDot = kStep % kDotsOfSum<kPacking>;
  for (int v = 0; v < kVectors; ++v) {
    const uint8_t* at = w + kStep * 128 + (first_vector + v) * 64;
    if constexpr (kPacking == Packing::kBytes) __builtin_prefetch(at + kPrefetchBytes);
    const U8x64 bytes = LoadBytes(at);
    for (int r = 0; r < kRows; ++r) {
      int32_t four;
      std::memcpy(&four, x[r * x_stride].values + 4 * kStep, sizeof(four));
      if constexpr (kPacking == Packing::kBytes) {
        sum[r][v].template AddBytes<kDot>(bytes, four);
      } else {
        sum[r][v].template Add<DotBits(kPacking), kDot, kDotsOfSum<kPacking>>(bytes, four);
      }
    }
  }
}

// Adds the products of the columns of LoadPair. zero: of kNibblesAndZeros.
template <Packing kPacking, int kPair, int kRows, int kVectors>
BATON_INLINE void AddPair(const ActivationBlock* x, int64_t x_stride, const uint8_t* w,
                          int first_vector, const U8x64 (&zero)[kVectors],
                          DotSum (&sum)[kRows][kVectors]) {
  constexpr int64_t kLines = BlockBytes(kPacking) / kLineBytes;
  for (int64_t i = kPair * kLines / 4; i < (kPair + 1) * kLines / 4; ++i) {
    __builtin_prefetch(w + kPrefetchBytes + i * kLineBytes);
  }
  for (int v = 0; v < kVectors; ++v) {
    U8x64 first, second;
    LoadPair<kPacking, kPair>(w, first_vector + v, first, second);
    if constexpr (kPacking == Packing::kNibblesAndZeros) {
      first = AddBytes(first, zero[v]);
      second = AddBytes(second, zero[v]);
    }
    for (int r = 0; r < kRows; ++r) {
      int32_t four[2];
      std::memcpy(four, x[r * x_stride].values + 8 * kPair, sizeof(four));
      constexpr int kDots = kDotsOfSum<kPacking>, kDot = 2 * kPair % kDots;
      sum[r][v].template Add<DotBits(kPacking), kDot, kDots>(first, four[0]);
      sum[r][v].template Add<DotBits(kPacking), kDot + 1, kDots>(second, four[1]);
    }
  }
}

// Adds the products of a half of a block, 16 columns.
template <Packing kPacking, int kHalf, int kRows, int kVectors>
BATON_INLINE void AddHalf(const ActivationBlock* x, int64_t x_stride, const uint8_t* w,
                          int first_vector, const U8x64 (&zero)[kVectors],
                          DotSum (&sum)[kRows][kVectors]) {
  if constexpr (!IsUnpacked(kPacking)) {
    AddPair<kPacking, 2 * kHalf>(x, x_stride, w, first_vector, zero, sum);
    AddPair<kPacking, 2 * kHalf + 1>(x, x_stride, w, first_vector, zero, sum);
  } else {
    AddStep<kPacking, 4 * kHalf>(x, x_stride, w, first_vector, sum);
    AddStep<kPacking, 4 * kHalf + 1>(x, x_stride, w, first_vector, sum);
    AddStep<kPacking, 4 * kHalf + 2>(x, x_stride, w, first_vector, sum);
    AddStep<kPacking, 4 * kHalf + 3>(x, x_stride, w, first_vector, sum);
  }
}

// total += (sum * x_scale) * factor
template <int kRows, int kVectors>
BATON_INLINE void FoldSums(const ActivationBlock* x, int64_t x_stride,
                           const DotSum (&sum)[kRows][kVectors], const F32x16 (&factor)[kVectors],
                           F32x16 (&total)[kRows][kVectors]) {
  for (int r = 0; r < kRows; ++r) {
    const F32x16 x_scale = Set1(x[r * x_stride].scale);
    for (int v = 0; v < kVectors; ++v) {
      total[r][v] = Fma(Mul(ToFloat(sum[r][v].Sum()), x_scale), factor[v], total[r][v]);
    }
  }
}

// The scales of columns [at, at + 16) of a panel without super-blocks.
template <Packing kPacking>
BATON_INLINE F32x16 LoadScales(const uint8_t* header, Element element, int at) {
  if constexpr (kPacking == Packing::kFp4) {
    return LoadExponents(header + at);
  } else {
    return LoadElements(header, element, at);
  }
}

template <Packing kPacking, int kRows, int kVectors>
BATON_NO_INLINE void MulQuantizedTile(const ActivationBlock* x, int64_t x_stride, const uint8_t* w,
                                      const float* bias, float* out, int64_t out_stride,
                                      const QuantizedRange& range) {
  constexpr bool kZeros = kPacking == Packing::kNibblesAndZeros;
  F32x16 total[kRows][kVectors];
  LoadTotals(out, out_stride, range, total);
  x += range.begin;
  [[maybe_unused]] const uint8_t* ahead = range.ahead;
  for (int64_t group = range.begin; group < range.end; group += range.group_blocks) {
    F32x16 scale[kVectors];
    U8x64 zero[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      const int at = (range.first_vector + v) * 16;
      scale[v] = LoadScales<kPacking>(w, range.scale_element, at);
      if constexpr (kZeros) zero[v] = SpreadBytes(w + kQuantizedScaleBytes + at);
    }
    w += HeaderBytes(kPacking);
    const int64_t end =
        group + range.group_blocks < range.end ? group + range.group_blocks : range.end;
    for (int64_t block = group; block < end; ++block, ++x) {
      if constexpr (IsUnpacked(kPacking) && kPacking != Packing::kBytes) {
        PrefetchAhead<kPacking>(ahead);
      }
      DotSum sum[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) sum[r][v].Start(-range.zero * x[r * x_stride].sum);
      }
      AddHalf<kPacking, 0>(x, x_stride, w, range.first_vector, zero, sum);
      AddHalf<kPacking, 1>(x, x_stride, w, range.first_vector, zero, sum);
      w += BlockBytes(kPacking);
      FoldSums(x, x_stride, sum, scale, total);
    }
  }
  StoreTotals(total, bias, out, out_stride, range);
}

// What a block's values (of 6 bits: those of its first 16 columns of `in`) and its least values (of
// 6 bits: the last 16) are multiplied by, of the columns [at, at + 16) of a panel: exact products.
template <Packing kPacking>
BATON_INLINE void LoadFactors(const uint8_t* header, const uint8_t* w, int at, F32x16& a,
                              F32x16& b) {
  if constexpr (IsUnpacked(kPacking)) {
    a = Load((const float*)w + at);
    b = Load((const float*)w + kPanelColumns + at);
  } else {
    const F32x16 scale = LoadF16((const uint16_t*)header + at);
    a = Mul(scale, LoadI8(w + at));
    const F32x16 other =
        IsOf6Bits(kPacking) ? scale : LoadF16((const uint16_t*)header + kPanelColumns + at);
    b = Mul(other, LoadI8(w + kPanelColumns + at));
  }
}

template <Packing kPacking, int kRows, int kVectors>
BATON_NO_INLINE void MulSuperTile(const ActivationBlock* x, int64_t x_stride, const uint8_t* w,
                                  const float* bias, float* out, int64_t out_stride,
                                  const QuantizedRange& range) {
  F32x16 total[kRows][kVectors];
  LoadTotals(out, out_stride, range, total);
  x += range.begin;
  [[maybe_unused]] const uint8_t* ahead = range.ahead;
  const U8x64 no_zero[kVectors] = {};
  for (int64_t group = range.begin; group < range.end; group += range.group_blocks) {
    const uint8_t* header = w;
    w += HeaderBytes(kPacking);
    const int64_t end =
        group + range.group_blocks < range.end ? group + range.group_blocks : range.end;
    for (int64_t block = group; block < end; ++block, ++x) {
      F32x16 a[kVectors], b[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        LoadFactors<kPacking>(header, w, (range.first_vector + v) * 16, a[v], b[v]);
      }
      w += FactorBytes(kPacking);
      if constexpr (IsUnpacked(kPacking)) PrefetchAhead<kPacking>(ahead);
      DotSum sum[kRows][kVectors];
      for (int r = 0; r < kRows; ++r) {
        const int32_t of_zeros = IsOf6Bits(kPacking) ? -32 * x[r * x_stride].first_sum : 0;
        for (int v = 0; v < kVectors; ++v) sum[r][v].Start(of_zeros);
      }
      AddHalf<kPacking, 0>(x, x_stride, w, range.first_vector, no_zero, sum);
      if constexpr (IsOf6Bits(kPacking)) {
        FoldSums(x, x_stride, sum, a, total);
        for (int r = 0; r < kRows; ++r) {
          const ActivationBlock& of_row = x[r * x_stride];
          const int32_t of_zeros = -32 * (of_row.sum - of_row.first_sum);
          for (int v = 0; v < kVectors; ++v) sum[r][v].Start(of_zeros);
        }
      }
      AddHalf<kPacking, 1>(x, x_stride, w, range.first_vector, no_zero, sum);
      w += BlockBytes(kPacking) - FactorBytes(kPacking);
      if constexpr (IsOf6Bits(kPacking)) {
        FoldSums(x, x_stride, sum, b, total);
        continue;
      }
      FoldSums(x, x_stride, sum, a, total);
      for (int r = 0; r < kRows; ++r) {
        const F32x16 scaled_sum = Set1(x[r * x_stride].scaled_sum);
        for (int v = 0; v < kVectors; ++v) total[r][v] = Fma(scaled_sum, b[v], total[r][v]);
      }
    }
  }
  StoreTotals(total, bias, out, out_stride, range);
}

// What stays in the first-level cache while all rows pass by.
constexpr int64_t kPassBlocks = 16;

// A pass as one of UnpackedOf(kPacking).
template <Packing kPacking>
void Unpack(const uint8_t* w, const QuantizedRange& range, uint8_t* out) {
  for (int64_t group = range.begin; group < range.end; group += range.group_blocks) {
    if constexpr (kPacking == Packing::kFp4) {
      uint16_t scales[kPanelColumns];  // in bfloat16
      for (int i = 0; i < kPanelColumns; ++i) scales[i] = static_cast<uint16_t>(w[i] << 7);
      std::memcpy(out, scales, sizeof(scales));
    } else {
      std::memcpy(out, w, kQuantizedScaleBytes);
    }
    U8x64 zero[2];
    if constexpr (kPacking == Packing::kNibblesAndZeros) {
      for (int v = 0; v < 2; ++v) zero[v] = SpreadBytes(w + kQuantizedScaleBytes + v * 16);
    }
    w += HeaderBytes(kPacking);
    out += HeaderBytes(Packing::kUnpacked);
    const int64_t end =
        group + range.group_blocks < range.end ? group + range.group_blocks : range.end;
    for (int64_t pair = 0; pair < (end - group) * 4; ++pair, w += 128, out += 256) {
      for (int v = 0; v < 2; ++v) {
        const U8x64 bytes = LoadBytes(w + v * 64);
        U8x64 low = LowNibbles(bytes), high = HighNibbles(bytes);
        if constexpr (kPacking == Packing::kFp4) {
          low = Fp4Bytes(low);
          high = Fp4Bytes(high);
        }
        if constexpr (kPacking == Packing::kNibblesAndZeros) {
          low = AddBytes(low, zero[v]);
          high = AddBytes(high, zero[v]);
        }
        StoreBytes(low, out + v * 64);
        StoreBytes(high, out + 128 + v * 64);
      }
    }
  }
}

template <Packing kPacking, int kPair>
BATON_INLINE void UnpackPair(const uint8_t* values, int vector, uint8_t* out) {
  U8x64 first, second;
  LoadPair<kPacking, kPair>(values, vector, first, second);
  StoreBytes(first, out + kPair * 256);
  StoreBytes(second, out + kPair * 256 + 128);
}

template <Packing kPacking>
void UnpackSuper(const uint8_t* w, const QuantizedRange& range, uint8_t* out) {
  constexpr Packing kTo = UnpackedOf(kPacking);
  const uint8_t* header = w;
  for (int64_t block = range.begin; block < range.end; ++block) {
    if ((block - range.begin) % range.group_blocks == 0) {
      header = w;
      w += HeaderBytes(kPacking);
    }
    const uint8_t* values = w + FactorBytes(kPacking);
    for (int v = 0; v < 2; ++v) {
      F32x16 a, b;
      LoadFactors<kPacking>(header, w, v * 16, a, b);
      Store(a, (float*)out + v * 16);
      Store(b, (float*)out + kPanelColumns + v * 16);
      uint8_t* to = out + FactorBytes(kTo) + v * 64;
      UnpackPair<kPacking, 0>(values, v, to);
      UnpackPair<kPacking, 1>(values, v, to);
      UnpackPair<kPacking, 2>(values, v, to);
      UnpackPair<kPacking, 3>(values, v, to);
    }
    w += BlockBytes(kPacking);
    out += BlockBytes(kTo);
  }
}

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_QUANTIZED_TILES_H_
