#include <algorithm>
#include <optional>
#include <type_traits>

#include "common/backend/cuda/kernels/quantized.cuh"
#include "common/backend/cuda/kernels/quantized.h"
#include "common/backend/cuda/kernels/quantized_tile.cuh"
#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpLanes;

template <class To>
struct RowsLaunch {
  To to;
  int ahead;  // row tiles from a block's first one to that of the block that will take its place
};

// Asks for the rows of W of the block that will take this one's place: in L2 they are nearer.
template <int kBits>
BATON_DEVICE void PrefetchAhead(const QuantizedView& w, const int (&row_tiles)[kParts], int ahead,
                                int end) {
  if (row_tiles[0] + ahead >= end) return;  // whole blocks agree
  PrefetchSlices<kBits>(w, {row_tiles[0] + ahead, row_tiles[1] + ahead});
}

// A block takes 16 rows of W, a warp a slice of k. Blocks that take the same rows of W for other
// rows of x are neighbours: all but the first find W in L2, however small that is.
template <class Element, int kBits, int kXTiles>
BATON_KERNEL_RESIDENT(kRowsThreads, Resident(kXTiles))
QuantizedRowsKernel(RowsLaunch<QuantizedMatMulLaunch> launch) {
  constexpr int kColumns = kParts * kTileRows;
  const QuantizedMatMulLaunch& to = launch.to;
  const int row_tile = static_cast<int>(BlockIndex().y) * kParts;
  const int last_row_tile = (to.w.n - 1) / kTileRows;
  const int first_row = static_cast<int>(BlockIndex().x) * kXTiles * kXTile;
  const int row_tiles[kParts] = {row_tile, Least(row_tile + 1, last_row_tile)};
  PrefetchSlices<kBits>(to.w, row_tiles);
  AwaitPrevious();
  PrefetchAhead<kBits>(to.w, row_tiles, launch.ahead, last_row_tile);
  SumSlices<Element, kBits, kXTiles>(to, first_row, row_tiles);
  for (int output = ThreadIndex(); output < kXTiles * kTileOutputs; output += kRowsThreads) {
    const int row = first_row + output / kColumns;
    const int column = row_tile * kTileRows + output % kColumns;
    if (row >= to.rows || column >= to.w.n) continue;
    float total = FoldSlices<kXTiles>(to.w.k, output / kColumns, output % kColumns);
    if (to.bias != nullptr) total = Add(total, LoadGlobal(to.bias + column));
    float* const out = to.out + row * to.out_stride + column;
    if (to.added_scale != 0) total = Fma(total, to.added_scale, LoadFresh(out));
    StoreGlobal(out, total);
  }
}

// 8 rows of gate and the same of up.
template <class Element, int kBits, int kXTiles>
BATON_KERNEL_RESIDENT(kRowsThreads, Resident(kXTiles))
QuantizedGatedKernel(RowsLaunch<QuantizedMatMulGatedLaunch> launch) {
  const QuantizedMatMulGatedLaunch& to = launch.to;
  const int row_tile = static_cast<int>(BlockIndex().y), tiles = to.w.n / (2 * kTileRows);
  const int first_row = static_cast<int>(BlockIndex().x) * kXTiles * kXTile;
  const int row_tiles[kParts] = {row_tile, row_tile + tiles};
  PrefetchSlices<kBits>(to.w, row_tiles);
  AwaitPrevious();
  PrefetchAhead<kBits>(to.w, row_tiles, launch.ahead, tiles);
  SumSlices<Element, kBits, kXTiles>(to, first_row, row_tiles);
  StoreGatedSlices<Element, kXTiles>(to, first_row, row_tile * kTileRows);
}

template <class Element, int kBits>
BATON_KERNEL(kThreads)
DequantizeKernel(DequantizeLaunch launch) {
  AwaitPrevious();
  constexpr int kSteps = StepsATile(kBits);
  const int column_tile = static_cast<int>(BlockIndex().x) * kWarps + Warp();
  if (column_tile >= launch.w.column_tiles) return;
  const int row_tile = launch.first_row / kTileRows + static_cast<int>(BlockIndex().y);
  const int row = static_cast<int>(BlockIndex().y) * kTileRows + GroupOf(Lane());
  Fetched<kSteps> fetched;
  Fetch<kBits>(launch.w, TileRow(launch.w, row_tile), column_tile, fetched);
  if (row >= launch.row_count) return;
  uint16_t* out = static_cast<uint16_t*>(launch.out) + int64_t{row} * launch.w.k;
  BATON_UNROLL for (int step = 0; step < kSteps; ++step) {
    const int k = (column_tile * kSteps + step) * kChunkedK + MemberOf(Lane()) * kChunkElements;
    if (k >= launch.w.k) continue;
    const Dequantizer<Element, kBits> group(
        GroupOfStep<kBits>(fetched, step, launch.w.paired_scales), launch.w.bf16_scales);
    Store16(out + k, Dequantize<Element, kBits>(fetched.words, step, group));
  }
}

BATON_KERNEL(kThreads)
GatherColumnsKernel(GatherColumnsLaunch launch) {
  AwaitPrevious();
  const int column = (static_cast<int>(BlockIndex().y) * kThreads + ThreadIndex()) * kChunkElements;
  if (column >= launch.cols) return;
  const auto* x = static_cast<const uint16_t*>(launch.x) + BlockIndex().x * launch.x_stride;
  const Vec16 orders[2] = {Load16(launch.order + column), Load16(launch.order + column + 4)};
  Vec16 out;
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    const Vec16& order = orders[i / 2];
    const uint32_t low = LoadGlobal(x + order.x[i % 2 * 2]);
    out.x[i] = low | static_cast<uint32_t>(LoadGlobal(x + order.x[i % 2 * 2 + 1])) << 16;
  }
  Store16(static_cast<uint16_t*>(launch.out) + int64_t{BlockIndex().x} * launch.cols + column, out);
}

unsigned Tiles(int size, int tile) { return static_cast<unsigned>((size + tile - 1) / tile); }

// body(tiles of 8 rows of x that a block takes): at most 4. With 8, an SM holds half as many warps;
// on an H100, 64 rows of 7B in 4 bits took 1.28 times as long so as twice 32, in 8 bits 1.09
// (2026-11-26).
template <class Body>
void WithXTiles(int rows, const Body& body) {
  if (rows <= kXTile) return body(std::integral_constant<int, 1>());
  if (rows <= 2 * kXTile) return body(std::integral_constant<int, 2>());
  body(std::integral_constant<int, 4>());
}

// Blocks of `of_block` of the rows' tiles of W.
template <class To, class Kernel>
void LaunchRows(Kernel kernel, const To& to, int x_tiles, int tiles, int of_block, Stream stream) {
  const GridSize grid = {Tiles(to.rows, x_tiles * kXTile), Tiles(tiles, of_block), 1};
  const int at_once = Resident(x_tiles) * Multiprocessors() / static_cast<int>(grid.x);
  Launch(kernel, grid, kRowsThreads, RowsBytes(x_tiles), stream,
         RowsLaunch<To>{.to = to, .ahead = std::max(1, at_once) * of_block});
}

template <class Element, int kBits>
void Dispatch(const QuantizedMatMulLaunch& launch, Stream stream) {
  WithXTiles(launch.rows, [&](auto x_tiles) {
    LaunchRows(QuantizedRowsKernel<Element, kBits, x_tiles>, launch, x_tiles,
               (launch.w.n + kTileRows - 1) / kTileRows, kParts, stream);
  });
}

template <class Element, int kBits>
void Dispatch(const QuantizedMatMulGatedLaunch& launch, Stream stream) {
  WithXTiles(launch.rows, [&](auto x_tiles) {
    LaunchRows(QuantizedGatedKernel<Element, kBits, x_tiles>, launch, x_tiles,
               launch.w.n / (2 * kTileRows), 1, stream);
  });
}

template <class Element, int kBits>
void Dispatch(const DequantizeLaunch& launch, Stream stream) {
  Launch(DequantizeKernel<Element, kBits>,
         {Tiles(launch.w.column_tiles, kWarps), Tiles(launch.row_count, kTileRows), 1}, kThreads, 0,
         stream, launch);
}

template <class LaunchArgs>
void DispatchAll(const LaunchArgs& launch, int bits, DType dtype, Stream stream) {
  if (dtype == DType::kF16) {
    bits == 4 ? Dispatch<Half, 4>(launch, stream) : Dispatch<Half, 8>(launch, stream);
  } else {
    bits == 4 ? Dispatch<BFloat16, 4>(launch, stream) : Dispatch<BFloat16, 8>(launch, stream);
  }
}

// For fewer rows the shape `rows` is the best.
constexpr int kFewestTileRows = 17;

struct Candidate {
  TileGrid grid;
  double clocks;  // of a multiprocessor
};

// Clocks of the shape `tile` whose first `whole_blocks` blocks of columns take all slices. By
// instructions and products, a warp takes a clock or so for a k of its 32 rows of W. What a block
// of a slice stores, and another kernel loads, crosses at some 24 bytes a clock; that kernel's
// launch takes about 4,000.
Candidate CandidateOf(TileGrid grid, int whole_blocks, int k) {
  constexpr double kSumClocks = 10, kFoldClocks = 4000;
  const int multiprocessors = Multiprocessors();
  const auto rounds = [&](int blocks) {
    return static_cast<double>((blocks + multiprocessors - 1) / multiprocessors);
  };
  const int sliced = grid.whole_blocks + grid.sliced_blocks - whole_blocks;
  grid.whole_blocks = whole_blocks;
  grid.sliced_blocks = sliced;
  double clocks = rounds(grid.row_blocks * whole_blocks) * kTileWarps * k;
  if (sliced > 0) {
    clocks += rounds(grid.row_blocks * sliced * grid.slices) * kTileWarps *
                  (SliceLength(k) + kSumClocks * grid.x_tiles * kXTile) +
              kFoldClocks;
  }
  return {grid, clocks};
}

// The blocks of the shape `tile`, or none for the shape `rows`. Its clocks are those of x, which
// comes from L2 for every 16 rows of W: an H100 moved 35 bytes a clock and multiprocessor so, of 7B
// in 4 bits (2026-11-26). The others are estimates, which must be a tenth less than that.
template <class AnyLaunch>
std::optional<TileGrid> TileGridFor(const AnyLaunch& launch, QuantizedShape shape) {
  constexpr double kRowsBytes = 35, kMeasured = 0.9;
  const int rows = launch.rows, n = launch.w.n, k = launch.w.k;
  if (shape == QuantizedShape::kAuto && rows < kFewestTileRows) shape = QuantizedShape::kRows;
  if (shape == QuantizedShape::kRows) return std::nullopt;
  const int block_rows = rows > kSmallTileRows ? launch.tile_rows : kSmallTileRows;
  const auto blocks = static_cast<int>(Tiles(n, kTileColumns));
  const TileGrid whole = {.row_blocks = static_cast<int>(Tiles(rows, block_rows)),
                          .whole_blocks = blocks,
                          .sliced_blocks = 0,
                          .slices = (k + SliceLength(k) - 1) / SliceLength(k),
                          .x_tiles = block_rows / kXTile};
  if (shape == QuantizedShape::kTile) return whole;
  if (shape == QuantizedShape::kSlices) return CandidateOf(whole, blocks / 2, k).grid;
  Candidate best = CandidateOf(whole, blocks, k);
  const int rounds = whole.row_blocks * blocks / Multiprocessors();
  for (const int whole_blocks : {rounds * Multiprocessors() / whole.row_blocks, 0}) {
    const int columns = n - whole_blocks * kTileColumns;
    if (columns <= 0 || launch.slice_sums_floats < SliceSumsFloats(rows, columns, k)) continue;
    const Candidate sliced = CandidateOf(whole, whole_blocks, k);
    if (sliced.clocks < best.clocks) best = sliced;
  }
  const double of_rows =
      2.0 * rows * k * Tiles(n, kParts * kTileRows) / kRowsBytes / Multiprocessors();
  if (kMeasured * of_rows <= best.clocks) return std::nullopt;
  return best.grid;
}

template <class AnyLaunch>
void LaunchShape(const AnyLaunch& launch, int bits, DType dtype, QuantizedShape shape,
                 Stream stream) {
  if (launch.rows == 0 || launch.w.n == 0) return;
  if (const auto grid = TileGridFor(launch, shape)) {
    return LaunchQuantizedTile(launch, bits, dtype, *grid, stream);
  }
  DispatchAll(launch, bits, dtype, stream);
}

}  // namespace

int64_t SliceSumsFloats(int rows, int n, int k) {
  const int slices = (k + SliceLength(k) - 1) / SliceLength(k);
  return slices * int64_t{rows} * SliceSumsStride(n);
}

void LaunchQuantizedMatMul(const QuantizedMatMulLaunch& launch, int bits, DType dtype,
                           Stream stream, QuantizedShape shape) {
  static_assert(kAddedRows < kFewestTileRows);
  BATON_CHECK(launch.added_scale == 0 ||
              (launch.rows <= kAddedRows &&
               (shape == QuantizedShape::kAuto || shape == QuantizedShape::kRows)));
  LaunchShape(launch, bits, dtype, shape, stream);
}

void LaunchQuantizedMatMulGated(const QuantizedMatMulGatedLaunch& launch, int bits, DType dtype,
                                Stream stream, QuantizedShape shape) {
  LaunchShape(launch, bits, dtype, shape, stream);
}

void LaunchDequantize(const DequantizeLaunch& launch, int bits, DType dtype, Stream stream) {
  if (launch.row_count == 0) return;
  DispatchAll(launch, bits, dtype, stream);
}

void LaunchGatherColumns(const GatherColumnsLaunch& launch, int rows, Stream stream) {
  if (rows == 0) return;
  Launch(GatherColumnsKernel,
         {static_cast<unsigned>(rows), Tiles(launch.cols, kThreads * kChunkElements), 1}, kThreads,
         0, stream, launch);
}

}  // namespace baton::backend::cuda
