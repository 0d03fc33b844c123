// Products of many rows: what a block of MatMulTileKernel does, for all kernels that multiply so.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_TILE_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_TILE_CUH_

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// A block takes kSide rows by kSide rows of W, each of its warps 32 by kSide / 2: registers of A
// are made once for two row tiles, and multiplied with all columns.
template <int kSide>
struct TileShape {
  static constexpr int kRowTiles = 2, kColumnTiles = kSide / 2 / kColumnTile;
  static constexpr int kThreads = kSide / 32 * 2 * kWarpLanes;
  static constexpr int kChunks = kChunkedK / kChunkElements;  // of a row in a stage: 64 bytes
  static constexpr int kCopies = 2 * kSide * kChunks / kThreads;
  static constexpr int kStageBytes = 2 * kSide * kChunks * 16;
  // Large blocks have a multiprocessor to themselves, and room for one more stage of asynchronous
  // copies: L2 takes the longer the more multiprocessors read from it.
  static constexpr int kAsyncStages = kSide == 128 ? 4 : 3;
  BATON_HOST_DEVICE static constexpr int Bytes(bool async) {
    return (async ? kAsyncStages : 3) * kStageBytes;
  }
};

// What a block makes of its sums, four adjacent columns of a row at a time: the product itself. A
// block's columns begin at `first_column`; row `row` of its kSide rows of W is column
// PairedColumn(row) of them.
template <class Launch>
struct Product {
  using Arguments = Launch;
  static constexpr int kMatrices = 1;  // that share a block's rows of W
  static BATON_DEVICE int Columns(const Arguments& launch) { return launch.n; }
  static BATON_DEVICE int WeightRow(const Arguments& launch, int first_column, int row) {
    return Least(first_column + PairedColumn(row), launch.n - 1);
  }
  template <class Element>
  static BATON_DEVICE void Store(const Arguments& launch, int row, int column,
                                 const float (*sums)[4]) {
    const bool aligned =
        (reinterpret_cast<uintptr_t>(launch.out) | launch.out_stride * 4) % 16 == 0;
    if (!aligned || row >= launch.rows || column + 4 > launch.n) {
      BATON_UNROLL for (int i = 0; i < 4; ++i) StoreSum(launch, row, column + i, sums[0][i]);
      return;
    }
    float biased[4];
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      biased[i] = Biased(launch.bias, column + i, sums[0][i]);
    }
    Store16(OutRow(launch, row) + column, Pack4(biased));
  }
};

// Gate and up of a product, gated: of every 32 rows of W the first 16 are gate's, the others up's.
template <class Launch>
struct GatedProduct {
  using Arguments = Launch;
  static constexpr int kMatrices = 2;
  static BATON_DEVICE int Columns(const Arguments& launch) { return launch.cols; }
  static BATON_DEVICE int WeightRow(const Arguments& launch, int first_column, int row) {
    const int column = first_column + row / 32 * 16 + PairedColumn(row % 16);
    return row / 16 % 2 * launch.cols + Least(column, launch.cols - 1);
  }
  template <class Element>
  static BATON_DEVICE void Store(const Arguments& launch, int row, int column,
                                 const float (*sums)[4]) {
    if (row >= launch.rows || column >= launch.cols) return;  // a multiple of 8
    float gated[4];
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      gated[i] = GatedSum(launch, column + i, sums[0][i], sums[1][i]);
    }
    uint16_t* const out = MatrixRow(launch.out, row, launch.out_stride) + column;
    StoreGlobal(reinterpret_cast<Vec8*>(out),
                Vec8{{Element::Pack(gated[0], gated[1]), Element::Pack(gated[2], gated[3])}});
  }
};

// The stages of 32 k's in shared memory, rows of x and then rows of W, and what a thread copies to
// them. Rows of 64 bytes need no swizzle: the eight lanes of a cycle read two whole rows.
template <class Result, int kSide>
struct Stages {
  using Shape = TileShape<kSide>;
  const uint16_t* from[Shape::kCopies];
  int k = ThreadIndex() % Shape::kChunks * kChunkElements;  // of the next load
  int fill = 0;                                             // where the next stage will be
  Vec16 held[Shape::kCopies];  // without asynchronous copies: the stage that is stored next

  BATON_DEVICE Stages(const typename Result::Arguments& launch, int first_row, int first_column) {
    BATON_UNROLL for (int i = 0; i < Shape::kCopies; ++i) {
      // Rows that there are not are those of others, and not stored.
      const int row = (i * Shape::kThreads + ThreadIndex()) / Shape::kChunks;
      from[i] = (i < Shape::kCopies / 2
                     ? XRow(launch, Least(first_row + row, launch.rows - 1))
                     : MatrixRow(launch.w, Result::WeightRow(launch, first_column, row - kSide),
                                 launch.k)) +
                k;
    }
    if (CopiesAreAsync()) {
      BATON_UNROLL for (int i = 1; i < Shape::kAsyncStages - 1; ++i) Fetch(launch.k);
    } else {
      Load(launch.k);
    }
    Fetch(launch.k);
  }

  static BATON_DEVICE int Next(int stage) {
    const int last = Shape::Bytes(CopiesAreAsync()) - Shape::kStageBytes;
    return stage == last ? 0 : stage + Shape::kStageBytes;
  }

  // Loads one more stage, zeros beyond the end. Asynchronously into shared memory; else to
  // registers, once what they hold is stored.
  BATON_DEVICE void Fetch(int end) {
    void* to[Shape::kCopies];
    const void* source[Shape::kCopies];
    bool valid[Shape::kCopies];
    BATON_UNROLL for (int i = 0; i < Shape::kCopies; ++i) {
      to[i] = SharedMemory() + fill + (i * Shape::kThreads + ThreadIndex()) * 16;
      source[i] = from[i];
      valid[i] = k < end;
    }
    fill = Next(fill);
    if (CopiesAreAsync()) {
      CopyAsync16(to, source, valid);
      CopyAsyncCommit();
      Advance();
    } else {
      BATON_UNROLL for (int i = 0; i < Shape::kCopies; ++i) Store16(to[i], held[i]);
      Load(end);
    }
  }

 private:
  BATON_DEVICE void Load(int end) {
    BATON_UNROLL for (int i = 0; i < Shape::kCopies; ++i) held[i] = Load16If(k < end, from[i]);
    Advance();
  }
  BATON_DEVICE void Advance() {
    BATON_UNROLL for (int i = 0; i < Shape::kCopies; ++i) from[i] += kChunkedK;
    k += kChunkedK;
  }
};

// What a warp multiplies in a step, from the place `stage` in shared memory.
template <int kSide>
struct Operands {
  using Shape = TileShape<kSide>;
  static constexpr int kRowBytes = Shape::kChunks * 16;
  int at_x, at_w;  // the lane's first chunks in a stage
  Vec16 x[Shape::kRowTiles * 2], w[Shape::kColumnTiles];

  BATON_DEVICE Operands(int row, int column)
      : at_x((row + GroupOf(Lane())) * kRowBytes + MemberOf(Lane()) * 16),
        at_w((kSide + column + GroupOf(Lane())) * kRowBytes + MemberOf(Lane()) * 16) {}
  BATON_DEVICE void LoadX(int stage, int tile) {
    BATON_UNROLL for (int i = tile * 2; i < tile * 2 + 2; ++i) {
      x[i] = LoadShared16(SharedMemory() + stage + at_x + i * 8 * kRowBytes);
    }
  }
  BATON_DEVICE void LoadW(int stage, int tile) {
    w[tile] = LoadShared16(SharedMemory() + stage + at_w + tile * kColumnTile * kRowBytes);
  }
};

// A block's part of Result: kSide rows from block_row * kSide on.
template <class Result, class Element, int kSide>
BATON_DEVICE void MultiplyTile(const typename Result::Arguments& launch, int block_row,
                               int block_column) {
  using Shape = TileShape<kSide>;
  constexpr int kRowTiles = Shape::kRowTiles, kColumnTiles = Shape::kColumnTiles;
  constexpr int kColumns = kSide / Result::kMatrices;
  // Tiles of columns between loads. Small blocks share a multiprocessor, and take turns themselves.
  constexpr int kTurn = kSide == 128 ? 2 : kColumnTiles;
  constexpr int kTurns = kColumnTiles / kTurn;
  const int row = Warp() / 2 * kRowTiles * kRowTile, column = Warp() % 2 * (kSide / 2);
  const uint32_t hidden_zero = HiddenZero();
  Stages<Result, kSide> stages(launch, block_row * kSide, block_column * kColumns);
  Operands<kSide> operands(row, column);
  float totals[kRowTiles * kColumnTiles][4];
  BATON_UNROLL for (auto& total : totals) {
    BATON_UNROLL for (float& value : total) value = kNoSlice;
  }
  // Until the next stage is there for all, and all have done with the one that is filled now.
  const auto next_stage = [&] {
    CopyAsyncWait<Shape::kAsyncStages - 2>();
    SyncThreads();
  };
  next_stage();
  BATON_UNROLL for (int i = 0; i < kRowTiles; ++i) operands.LoadX(0, i);
  BATON_UNROLL for (int j = 0; j < kColumnTiles; ++j) operands.LoadW(0, j);
  stages.Fetch(launch.k);
  int stage = stages.Next(0);
  const int length = SliceLength(launch.k);
  BATON_NO_UNROLL for (int begin = 0; begin < launch.k; begin += length) {
    float sums[kRowTiles * kColumnTiles][4] = {};
    const int end = Least(begin + length, launch.k);
    BATON_NO_UNROLL for (int k = begin; k < end; k += kChunkedK) {
      // While a step's operands are multiplied, the next one's take their place. Products and loads
      // take turns: shared memory takes about as long to serve a warp's loads as its tensor cores
      // to multiply them, so neither may wait until the other has done with all.
      RowsOperand rows[kRowTiles] = {{operands.x[0], operands.x[1], kTurns == 1 ? hidden_zero : 0},
                                     {operands.x[2], operands.x[3], kTurns == 1 ? hidden_zero : 0}};
      const auto take = [&](int turn) {
        const int first = turn * kTurn;
        // The two products of a tile depend on each other: others are between them.
        BATON_UNROLL for (int product = 0; product < 2; ++product) {
          BATON_UNROLL for (int at = 0; at < kTurn * kRowTiles; ++at) {
            const int j = first + at / kRowTiles, i = at % kRowTiles;
            Multiply<Element>(sums[i * kColumnTiles + j], rows[i], operands.w[j], product);
          }
        }
        if (turn == 0) next_stage();
        BATON_UNROLL for (int i = 0; i < kRowTiles; ++i) {
          if (i % kTurns == turn) operands.LoadX(stage, i);
        }
        if (turn == kRowTiles % kTurns) stages.Fetch(launch.k);
        BATON_UNROLL for (int j = 0; j < kTurn; ++j) operands.LoadW(stage, first + j);
      };
      if constexpr (kTurns == 1) {
        take(0);
      } else {
        BATON_UNROLL for (RowsOperand& tile : rows) tile.Pin(hidden_zero);
        BATON_UNROLL for (int turn = 0; turn < kTurns; ++turn) Fenced([&] { take(turn); });
      }
      stage = stages.Next(stage);
    }
    BATON_UNROLL for (int i = 0; i < kRowTiles * kColumnTiles; ++i) {
      BATON_UNROLL for (int e = 0; e < 4; ++e) totals[i][e] = Add(totals[i][e], sums[i][e]);
    }
  }
  CopyAsyncWait<0>();
  // A lane has four adjacent columns of two tiles, in rows g and g + 8.
  BATON_UNROLL for (int i = 0; i < kRowTiles * 2; ++i) {
    const int from_row = block_row * kSide + row + i * 8 + GroupOf(Lane());
    float fours[kColumnTiles / 2][4];
    BATON_UNROLL for (int j = 0; j < kColumnTiles * 2; ++j) {
      fours[j / 4][j % 4] = totals[i / 2 * kColumnTiles + j / 2][i % 2 * 2 + j % 2];
    }
    BATON_UNROLL for (int j = 0; j < kColumnTiles / 2; j += Result::kMatrices) {
      Result::template Store<Element>(
          launch, from_row,
          block_column * kColumns + (column + j * 16) / Result::kMatrices + MemberOf(Lane()) * 4,
          fours + j);
    }
  }
}

// Launches a kernel whose blocks call MultiplyTile.
template <int kSide, class Args>
void LaunchTiles(void (*kernel)(Args), GridSize grid, Stream stream, const Args& args) {
  using Shape = TileShape<kSide>;
  Launch(kernel, grid, Shape::kThreads,
         static_cast<size_t>(Shape::Bytes(CopiesAreAsync(kernel, stream))), stream, args);
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_TILE_CUH_
