#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul.h"

namespace baton::backend::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * kWarpLanes;

BATON_DEVICE const uint16_t* Row(const void* matrix, int64_t row, int64_t stride) {
  return static_cast<const uint16_t*>(matrix) + row * stride;
}

// 32 k's of a product of 16 rows with 8 columns.
template <class Element>
BATON_DEVICE void Accumulate(float (&sums)[4], const Vec16& low, const Vec16& high,
                             const Vec16& w) {
  BATON_UNROLL for (int product = 0; product < 2; ++product) {
    const uint32_t a[4] = {low.x[product * 2], high.x[product * 2], low.x[product * 2 + 1],
                           high.x[product * 2 + 1]};
    Element::Mma16(sums, a, w.x[product * 2], w.x[product * 2 + 1]);
  }
}

BATON_DEVICE void StoreSums(const MatMulLaunch& launch, int first_row, int first_column,
                            const float (&sums)[4]) {
  BATON_UNROLL for (int i = 0; i < 4; ++i) {
    const int row = first_row + GroupOf(Lane()) + i / 2 * 8;
    const int column = first_column + MemberOf(Lane()) * 2 + i % 2;
    if (row >= launch.rows || column >= launch.n) continue;
    launch.out[row * launch.out_stride + column] =
        launch.bias == nullptr ? sums[i] : Add(sums[i], launch.bias[column]);
  }
}

constexpr int kColumnsAWarp = 8;
constexpr int kAhead = 4;  // chunks of 32 k's that are on their way at once

template <class Element>
BATON_KERNEL(kThreads)
MatMulRowsKernel(MatMulLaunch launch) {
  const int column = (static_cast<int>(BlockIndex().x) * kWarps + Warp()) * kColumnsAWarp;
  const int first_row = static_cast<int>(BlockIndex().y) * kRowTile;
  if (column >= launch.n) return;
  const int row = first_row + GroupOf(Lane());
  const int offset = MemberOf(Lane()) * kChunkElements;
  const bool has_low = row < launch.rows, has_high = row + 8 < launch.rows;
  const bool has_column = column + GroupOf(Lane()) < launch.n;
  const uint16_t* low = Row(launch.x, has_low ? row : 0, launch.x_stride) + offset;
  const uint16_t* high = Row(launch.x, has_high ? row + 8 : 0, launch.x_stride) + offset;
  const uint16_t* w = Row(launch.w, has_column ? column + GroupOf(Lane()) : 0, launch.k) + offset;
  float sums[4] = {};
  for (int k = 0; k < launch.k; k += kAhead * kChunkedK) {
    Vec16 x_low[kAhead], x_high[kAhead], weights[kAhead];
    BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
      const int at = k + i * kChunkedK;
      const bool valid = at + offset < launch.k;
      weights[i] = valid && has_column ? Load16(w + at) : Vec16{};
      x_low[i] = valid && has_low ? Load16(low + at) : Vec16{};
      x_high[i] = valid && has_high ? Load16(high + at) : Vec16{};
    }
    BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
      // Whole warps agree on this: past the end the tile kernel stops, too.
      if (k + i * kChunkedK < launch.k) {
        Accumulate<Element>(sums, x_low[i], x_high[i], weights[i]);
      }
    }
  }
  StoreSums(launch, first_row, column, sums);
}

constexpr int kTileRows = 64, kTileColumns = 64;
constexpr int kStages = 3;
constexpr int kChunks = kChunkedK / kChunkElements;  // of a row in a stage: 64 bytes
constexpr int kStageBytes = (kTileRows + kTileColumns) * kChunks * 16;

// Rows of 64 bytes need no swizzle: the eight lanes of a cycle read two whole rows.
BATON_DEVICE std::byte* StageRow(int stage, int row) {
  return SharedMemory() + stage * kStageBytes + row * kChunks * 16;
}

// Rows of x, then rows of W, to shared memory; zeros beyond the matrices.
BATON_DEVICE void FetchStage(const MatMulLaunch& launch, int stage, int first_row, int first_column,
                             int k) {
  if (k < launch.k) {
    for (int index = ThreadIndex(); index < (kTileRows + kTileColumns) * kChunks;
         index += kThreads) {
      const int row = index / kChunks, at = k + index % kChunks * kChunkElements;
      const bool is_x = row < kTileRows;
      const int source = is_x ? first_row + row : first_column + row - kTileRows;
      const bool valid = at < launch.k && source < (is_x ? launch.rows : launch.n);
      const void* from = launch.w;
      if (valid) {
        from = is_x ? Row(launch.x, source, launch.x_stride) + at
                    : Row(launch.w, source, launch.k) + at;
      }
      CopyAsync16(StageRow(stage, row) + index % kChunks * 16, from, valid);
    }
  }
  CopyAsyncCommit();  // also an empty group: waits count groups
}

template <class Element>
BATON_KERNEL(kThreads)
MatMulTileKernel(MatMulLaunch launch) {
  const int first_row = static_cast<int>(BlockIndex().y) * kTileRows;
  const int first_column = static_cast<int>(BlockIndex().x) * kTileColumns;
  // Each warp 32 x 32: two fragments of x by four of W.
  const int warp_row = Warp() / 2 * 32, warp_column = Warp() % 2 * 32;
  const int group = GroupOf(Lane()), byte = MemberOf(Lane()) * 16;
  float sums[2][4][4] = {};
  for (int i = 0; i < kStages - 1; ++i) {
    FetchStage(launch, i, first_row, first_column, i * kChunkedK);
  }
  int stage = 0;
  for (int k = 0; k < launch.k; k += kChunkedK) {
    CopyAsyncWait<kStages - 2>();
    // Also: all have done with the stage that is fetched into now.
    SyncThreads();
    FetchStage(launch, (stage + kStages - 1) % kStages, first_row, first_column,
               k + (kStages - 1) * kChunkedK);
    Vec16 x[2][2], w[4];
    BATON_UNROLL for (int i = 0; i < 2; ++i) {
      BATON_UNROLL for (int half = 0; half < 2; ++half) {
        x[i][half] = LoadShared16(StageRow(stage, warp_row + i * 16 + half * 8 + group) + byte);
      }
    }
    BATON_UNROLL for (int j = 0; j < 4; ++j) {
      w[j] = LoadShared16(StageRow(stage, kTileRows + warp_column + j * 8 + group) + byte);
    }
    BATON_UNROLL for (int i = 0; i < 2; ++i) {
      BATON_UNROLL for (int j = 0; j < 4; ++j) {
        Accumulate<Element>(sums[i][j], x[i][0], x[i][1], w[j]);
      }
    }
    stage = (stage + 1) % kStages;
  }
  CopyAsyncWait<0>();
  BATON_UNROLL for (int i = 0; i < 2; ++i) {
    BATON_UNROLL for (int j = 0; j < 4; ++j) {
      StoreSums(launch, first_row + warp_row + i * 16, first_column + warp_column + j * 8,
                sums[i][j]);
    }
  }
}

unsigned Tiles(int size, int tile) { return static_cast<unsigned>((size + tile - 1) / tile); }

template <class Element>
void Dispatch(const MatMulLaunch& launch, bool rows_shape, Stream stream) {
  if (rows_shape) {
    Launch(MatMulRowsKernel<Element>,
           {Tiles(launch.n, kWarps * kColumnsAWarp), Tiles(launch.rows, kRowTile), 1}, kThreads, 0,
           stream, launch);
  } else {
    Launch(MatMulTileKernel<Element>,
           {Tiles(launch.n, kTileColumns), Tiles(launch.rows, kTileRows), 1}, kThreads,
           kStages * kStageBytes, stream, launch);
  }
}

}  // namespace

void LaunchMatMul(const MatMulLaunch& launch, DType dtype, Stream stream, MatMulShape shape) {
  if (launch.rows == 0 || launch.n == 0) return;
  // Two row tiles read W twice, the second time from L2.
  const bool rows_shape =
      shape == MatMulShape::kAuto ? launch.rows <= 2 * kRowTile : shape == MatMulShape::kRows;
  if (dtype == DType::kF16) {
    Dispatch<Half>(launch, rows_shape, stream);
  } else {
    Dispatch<BFloat16>(launch, rows_shape, stream);
  }
}

}  // namespace baton::backend::cuda
