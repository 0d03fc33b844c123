#include <type_traits>

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/quantized.h"
#include "common/backend/cuda/kernels/quantized_tile.cuh"

namespace baton::backend::cuda {
namespace {

template <class To>
struct TileLaunch {
  To to;
  int whole_blocks, sliced_blocks;  // as TileGrid's
  float* slice_sums;                // [slice][row][column of the sliced blocks]
  int64_t slice_stride, row_stride;
};

// Where a block of a slice leaves the sum at `column` of the sliced blocks' columns.
template <class To>
BATON_DEVICE void StoreSliceSum(const TileLaunch<To>& launch, const TilePlace& place, int row,
                                int column, float sum) {
  StoreGlobal(launch.slice_sums + place.first_slice * launch.slice_stride +
                  row * launch.row_stride + column,
              sum);
}

template <class Element, int kBits, int kXTiles>
BATON_KERNEL(kTileThreads)
QuantizedTileKernel(TileLaunch<QuantizedMatMulLaunch> launch) {
  const QuantizedMatMulLaunch& to = launch.to;
  const TilePlace place(launch.whole_blocks, launch.sliced_blocks);
  const int first_row = static_cast<int>(BlockIndex().x) * kXTiles * kXTile;
  const int first_tile = (place.block_column * kTileWarps + Warp()) * kWarpTiles;
  const int last_tile = (to.w.n - 1) / kTileRows;
  int row_tiles[kPairs][kParts];
  BATON_UNROLL for (int i = 0; i < kWarpTiles; ++i) {
    // Rows that there are not are those of others, and not stored.
    row_tiles[i / kParts][i % kParts] = Least(first_tile + i, last_tile);
  }
  PrefetchPairs<kBits>(to.w, row_tiles, place.first_slice);
  AwaitPrevious();
  const QuantizedTile<Element, kBits, kXTiles> tile(to, first_row, row_tiles, place.first_slice,
                                                    place.slices);
  BATON_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
    BATON_UNROLL for (int i = 0; i < kXTiles; ++i) {
      BATON_UNROLL for (int e = 0; e < 4; ++e) {
        const int row = first_row + tile.Row(i, e);
        const int column = (first_tile + pair * kParts + e / 2) * kTileRows + GroupOf(Lane());
        if (row >= to.rows || column >= to.w.n) continue;
        const float sum = tile.Sums(pair, i)[e];
        if (place.whole) {
          StoreGlobal(OutRow(to, row) + column, Biased(to.bias, column, sum));
        } else {
          StoreSliceSum(launch, place, row, column - launch.whole_blocks * kTileColumns, sum);
        }
      }
    }
  }
}

// A pair has 8 rows of gate and the same of up.
template <class Element, int kBits, int kXTiles>
BATON_KERNEL(kTileThreads)
QuantizedGatedTileKernel(TileLaunch<QuantizedMatMulGatedLaunch> launch) {
  const QuantizedMatMulGatedLaunch& to = launch.to;
  const TilePlace place(launch.whole_blocks, launch.sliced_blocks);
  const int first_row = static_cast<int>(BlockIndex().x) * kXTiles * kXTile;
  const int first_tile = (place.block_column * kTileWarps + Warp()) * kPairs;
  const int tiles = to.w.n / (2 * kTileRows);
  int row_tiles[kPairs][kParts];
  BATON_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
    row_tiles[pair][0] = Least(first_tile + pair, tiles - 1);
    row_tiles[pair][1] = row_tiles[pair][0] + tiles;
  }
  PrefetchPairs<kBits>(to.w, row_tiles, place.first_slice);
  AwaitPrevious();
  const QuantizedTile<Element, kBits, kXTiles> tile(to, first_row, row_tiles, place.first_slice,
                                                    place.slices);
  const int sliced_first = launch.whole_blocks * kTileColumns / 2;
  const bool odd = GroupOf(Lane()) % 2 == 1;
  BATON_UNROLL for (int pair = 0; pair < kPairs; ++pair) {
    if (first_tile + pair >= tiles) continue;  // whole warps agree
    const int column = (first_tile + pair) * kTileRows + GroupOf(Lane());
    BATON_UNROLL for (int i = 0; i < kXTiles; ++i) {
      const float(&sums)[4] = tile.Sums(pair, i);
      if (!place.whole) {
        BATON_UNROLL for (int e = 0; e < 4; ++e) {
          const int row = first_row + tile.Row(i, e), up = to.w.n / 2 - sliced_first;
          if (row >= to.rows) continue;
          StoreSliceSum(launch, place, row, column - sliced_first + e / 2 * up, sums[e]);
        }
        continue;
      }
      const float gated[2] = {Gated(sums[0], sums[2], to.gating),
                              Gated(sums[1], sums[3], to.gating)};
      // Two columns a lane, one access: of two lanes with adjacent columns, the even one has one
      // row, the odd one the next.
      const float other = ShuffleXor(odd ? gated[0] : gated[1], kWarpLanes / kTileRows);
      const int row = first_row + tile.Row(i, odd);
      if (row >= to.rows) continue;
      uint16_t* const out = MatrixRow(to.out, row, to.out_stride) + column / 2 * 2;
      StoreGlobal(reinterpret_cast<uint32_t*>(out),
                  odd ? Element::Pack(other, gated[1]) : Element::Pack(gated[0], other));
    }
  }
}

// The sums of `columns` of the result, from column first_column on, that blocks of a slice left.
template <class To>
struct FoldLaunch {
  To to;
  int first_column, columns;
  int slices;
  int64_t slice_stride, row_stride;
};

constexpr int kFoldThreads = 128;

// The slices' sums, in order, of two adjacent elements.
BATON_DEVICE Vec8 FoldTwo(const float* sums, int64_t slice_stride, int slices) {
  Vec8 of_slices[kSlices];
  BATON_UNROLL for (int slice = 0; slice < kSlices; ++slice) {
    of_slices[slice] = LoadFresh8If(slice < slices, sums + slice * slice_stride);
  }
  Vec8 total = of_slices[0];
  BATON_UNROLL for (int slice = 1; slice < kSlices; ++slice) {
    BATON_UNROLL for (int i = 0; i < 2; ++i) {
      const float sum = Add(BitsFloat(total.x[i]), BitsFloat(of_slices[slice].x[i]));
      if (slice < slices) total.x[i] = FloatBits(sum);
    }
  }
  return total;
}

// Two columns a thread.
BATON_KERNEL(kFoldThreads)
FoldSlicesKernel(FoldLaunch<QuantizedMatMulLaunch> launch) {
  AwaitPrevious();
  const QuantizedMatMulLaunch& to = launch.to;
  const int row = static_cast<int>(BlockIndex().x);
  const int first = (static_cast<int>(BlockIndex().y) * kFoldThreads + ThreadIndex()) * 2;
  if (first >= launch.columns) return;
  const Vec8 totals =
      FoldTwo(to.slice_sums + row * launch.row_stride + first, launch.slice_stride, launch.slices);
  BATON_UNROLL for (int i = 0; i < 2; ++i) {
    if (first + i >= launch.columns) return;
    const int column = launch.first_column + first + i;
    StoreGlobal(OutRow(to, row) + column, Biased(to.bias, column, BitsFloat(totals.x[i])));
  }
}

// The same, of gate and of up behind it.
template <class Element>
BATON_KERNEL(kFoldThreads)
FoldGatedSlicesKernel(FoldLaunch<QuantizedMatMulGatedLaunch> launch) {
  AwaitPrevious();
  const QuantizedMatMulGatedLaunch& to = launch.to;
  const int row = static_cast<int>(BlockIndex().x);
  const int first = (static_cast<int>(BlockIndex().y) * kFoldThreads + ThreadIndex()) * 2;
  if (first >= launch.columns) return;
  const float* const sums = to.slice_sums + row * launch.row_stride + first;
  const Vec8 gate = FoldTwo(sums, launch.slice_stride, launch.slices);
  const Vec8 up = FoldTwo(sums + launch.columns, launch.slice_stride, launch.slices);
  float gated[2];
  BATON_UNROLL for (int i = 0; i < 2; ++i) {
    gated[i] = Gated(BitsFloat(gate.x[i]), BitsFloat(up.x[i]), to.gating);
  }
  uint16_t* const out = MatrixRow(to.out, row, to.out_stride) + launch.first_column + first;
  StoreGlobal(reinterpret_cast<uint32_t*>(out), Element::Pack(gated[0], gated[1]));
}

// The kernels of a product, for body(tiles of 8 rows of x).
template <class Element, int kBits>
struct Plain {
  static constexpr int kMatrices = 1;
  template <int kXTiles>
  static constexpr auto kTile = QuantizedTileKernel<Element, kBits, kXTiles>;
  static constexpr auto kFold = FoldSlicesKernel;
};
template <class Element, int kBits>
struct GateAndUp {
  static constexpr int kMatrices = 2;
  template <int kXTiles>
  static constexpr auto kTile = QuantizedGatedTileKernel<Element, kBits, kXTiles>;
  static constexpr auto kFold = FoldGatedSlicesKernel<Element>;
};

template <class Kernels, int kXTiles, class To>
void LaunchTile(const TileLaunch<To>& launch, const TileGrid& grid, Stream stream) {
  const int columns = grid.whole_blocks + grid.sliced_blocks * grid.slices;
  Launch(Kernels::template kTile<kXTiles>,
         {static_cast<unsigned>(grid.row_blocks), static_cast<unsigned>(columns), 1}, kTileThreads,
         QuantizedTileShape<kXTiles>::kBytes, stream, launch);
}

template <class Kernels, class To>
void Dispatch(const To& to, const TileGrid& grid, Stream stream) {
  const int first_column = grid.whole_blocks * kTileColumns / Kernels::kMatrices;
  const int columns = to.w.n / Kernels::kMatrices - first_column;  // of the sliced blocks
  const int64_t row_stride = SliceSumsStride(columns * Kernels::kMatrices);
  const TileLaunch<To> tile = {.to = to,
                               .whole_blocks = grid.whole_blocks,
                               .sliced_blocks = grid.sliced_blocks,
                               .slice_sums = to.slice_sums,
                               .slice_stride = to.rows * row_stride,
                               .row_stride = row_stride};
  if (grid.x_tiles == kLargeTileRows / kXTile) {
    LaunchTile<Kernels, kLargeTileRows / kXTile>(tile, grid, stream);
  } else {
    LaunchTile<Kernels, kSmallTileRows / kXTile>(tile, grid, stream);
  }
  if (grid.sliced_blocks == 0) return;
  Launch(Kernels::kFold,
         {static_cast<unsigned>(to.rows), MatMulTiles(columns, 2 * kFoldThreads), 1}, kFoldThreads,
         0, stream,
         FoldLaunch<To>{.to = to,
                        .first_column = first_column,
                        .columns = columns,
                        .slices = grid.slices,
                        .slice_stride = tile.slice_stride,
                        .row_stride = row_stride});
}

template <template <class, int> class Kernels, class To>
void DispatchAll(const To& to, int bits, DType dtype, const TileGrid& grid, Stream stream) {
  if (dtype == DType::kF16) {
    bits == 4 ? Dispatch<Kernels<Half, 4>>(to, grid, stream)
              : Dispatch<Kernels<Half, 8>>(to, grid, stream);
  } else {
    bits == 4 ? Dispatch<Kernels<BFloat16, 4>>(to, grid, stream)
              : Dispatch<Kernels<BFloat16, 8>>(to, grid, stream);
  }
}

}  // namespace

void LaunchQuantizedTile(const QuantizedMatMulLaunch& launch, int bits, DType dtype,
                         const TileGrid& grid, Stream stream) {
  DispatchAll<Plain>(launch, bits, dtype, grid, stream);
}

void LaunchQuantizedTile(const QuantizedMatMulGatedLaunch& launch, int bits, DType dtype,
                         const TileGrid& grid, Stream stream) {
  DispatchAll<GateAndUp>(launch, bits, dtype, grid, stream);
}

}  // namespace baton::backend::cuda
