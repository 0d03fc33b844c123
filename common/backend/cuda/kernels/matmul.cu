#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul.h"

namespace baton::backend::cuda {
namespace {

BATON_DEVICE float FoldSlice(bool first, float before, float next) {
  return first ? next : Add(before, next);
}

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

BATON_DEVICE void StoreSum(const MatMulLaunch& launch, int row, int column, float sum) {
  if (row >= launch.rows || column >= launch.n) return;
  if (launch.bias != nullptr) sum = Add(sum, LoadGlobal(launch.bias + column));
  StoreGlobal(launch.out + row * launch.out_stride + column, sum);
}

// A warp a slice, for the same 16 rows by 8 columns of each of kParts parts of W.
constexpr int kRowsThreads = kSlices * kWarpLanes;
constexpr int kRowsColumns = 8;
constexpr int kRowsOutputs = kRowTile * kRowsColumns;
constexpr int kAhead = 4;  // chunks of 32 k's that are on their way at once

// Dynamic shared memory: [slice][part][16][8].
template <int kParts>
constexpr size_t kRowsBytes = kSlices* kParts* kRowsOutputs * sizeof(float);

// Leaves the warp's sums in shared memory. w: row `column` of each part, of which there may be
// none. The caller synchronizes.
template <class Element, int kParts, class Matrices>
BATON_DEVICE void SumSlice(const Matrices& launch, int first_row, bool has_column,
                           const uint16_t* const (&w)[kParts]) {
  const int group = GroupOf(Lane()), member = MemberOf(Lane());
  const int row = first_row + group, offset = member * kChunkElements;
  const bool has_low = row < launch.rows, has_high = row + 8 < launch.rows;
  const uint16_t* low = Row(launch.x, has_low ? row : 0, launch.x_stride) + offset;
  const uint16_t* high = Row(launch.x, has_high ? row + 8 : 0, launch.x_stride) + offset;
  const int length = SliceLength(launch.k);
  const int end = Least((Warp() + 1) * length, launch.k);
  float sums[kParts][4] = {};
  Vec16 x_low[kAhead], x_high[kAhead], weights[kParts][kAhead];
  const auto fetch = [&](int slot, int at) {
    const bool valid = at + offset < end;
    BATON_UNROLL for (int part = 0; part < kParts; ++part) {
      weights[part][slot] = Load16If(valid && has_column, w[part] + offset + at);
    }
    x_low[slot] = Load16If(valid && has_low, low + at);
    x_high[slot] = Load16If(valid && has_high, high + at);
  };
  // A ring: what is multiplied is fetched kAhead chunks before. Zeros behind the end change no sum.
  const int begin = Warp() * length;
  BATON_UNROLL for (int i = 0; i < kAhead; ++i) fetch(i, begin + i * kChunkedK);
  BATON_NO_UNROLL for (int k = begin; k < end; k += kAhead * kChunkedK) {
    BATON_UNROLL for (int i = 0; i < kAhead; ++i) {
      BATON_UNROLL for (int part = 0; part < kParts; ++part) {
        Accumulate<Element>(sums[part], x_low[i], x_high[i], weights[part][i]);
      }
      fetch(i, k + (i + kAhead) * kChunkedK);
    }
  }
  float* shared = reinterpret_cast<float*>(SharedMemory()) + Warp() * kParts * kRowsOutputs;
  BATON_UNROLL for (int part = 0; part < kParts; ++part) {
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      shared[part * kRowsOutputs + (group + i / 2 * 8) * kRowsColumns + member * 2 + i % 2] =
          sums[part][i];
    }
  }
}

// Of output `index` of part `part`.
template <int kParts>
BATON_DEVICE float FoldSlices(int k, int part, int index) {
  const int length = SliceLength(k);
  const float* shared = reinterpret_cast<const float*>(SharedMemory()) + part * kRowsOutputs;
  float total = 0;
  for (int slice = 0; slice < kSlices && slice * length < k; ++slice) {
    total = FoldSlice(slice == 0, total, shared[slice * kParts * kRowsOutputs + index]);
  }
  return total;
}

template <class Element>
BATON_KERNEL(kRowsThreads)
MatMulRowsKernel(MatMulLaunch launch) {
  const int first_column = static_cast<int>(BlockIndex().x) * kRowsColumns;
  const int first_row = static_cast<int>(BlockIndex().y) * kRowTile;
  const int column = first_column + GroupOf(Lane());
  const bool has_column = column < launch.n;
  SumSlice<Element, 1>(launch, first_row, has_column,
                       {Row(launch.w, has_column ? column : 0, launch.k)});
  SyncThreads();
  if (ThreadIndex() >= kRowsOutputs) return;
  StoreSum(launch, first_row + ThreadIndex() / kRowsColumns,
           first_column + ThreadIndex() % kRowsColumns, FoldSlices<1>(launch.k, 0, ThreadIndex()));
}

template <class Element>
BATON_KERNEL_RESIDENT(kRowsThreads, 2)
MatMulSiluMulKernel(MatMulSiluMulLaunch launch) {
  const int first_column = static_cast<int>(BlockIndex().x) * kRowsColumns;
  const int first_row = static_cast<int>(BlockIndex().y) * kRowTile;
  const int column = first_column + GroupOf(Lane());
  SumSlice<Element, 2>(
      launch, first_row, true,
      {Row(launch.w, column, launch.k), Row(launch.w, launch.cols + column, launch.k)});
  SyncThreads();
  // Two columns a thread: one access.
  const int index = ThreadIndex() * 2, row = first_row + index / kRowsColumns;
  if (index >= kRowsOutputs || row >= launch.rows) return;
  float gated[2];
  BATON_UNROLL for (int i = 0; i < 2; ++i) {
    gated[i] =
        SiluMul(FoldSlices<2>(launch.k, 0, index + i), FoldSlices<2>(launch.k, 1, index + i));
  }
  uint16_t* out = static_cast<uint16_t*>(launch.out) + row * launch.out_stride + first_column +
                  index % kRowsColumns;
  StoreGlobal(reinterpret_cast<uint32_t*>(out), Element::Pack(gated[0], gated[1]));
}

constexpr int kTileWarps = 4;
constexpr int kTileThreads = kTileWarps * kWarpLanes;
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
  constexpr int kCopies = (kTileRows + kTileColumns) * kChunks / kTileThreads;
  if (k < launch.k) {
    void* to[kCopies];
    const void* from[kCopies];
    bool valid[kCopies];
    BATON_UNROLL for (int i = 0; i < kCopies; ++i) {
      const int index = i * kTileThreads + ThreadIndex();
      const int row = index / kChunks, at = k + index % kChunks * kChunkElements;
      const bool is_x = row < kTileRows;
      const int source = is_x ? first_row + row : first_column + row - kTileRows;
      valid[i] = at < launch.k && source < (is_x ? launch.rows : launch.n);
      to[i] = StageRow(stage, row) + index % kChunks * 16;
      from[i] = launch.w;
      if (valid[i]) {
        from[i] = is_x ? Row(launch.x, source, launch.x_stride) + at
                       : Row(launch.w, source, launch.k) + at;
      }
    }
    CopyAsync16(to, from, valid);
  }
  CopyAsyncCommit();  // also an empty group: waits count groups
}

template <class Element>
BATON_KERNEL(kTileThreads)
MatMulTileKernel(MatMulLaunch launch) {
  const int first_row = static_cast<int>(BlockIndex().y) * kTileRows;
  const int first_column = static_cast<int>(BlockIndex().x) * kTileColumns;
  // Each warp 32 x 32: two fragments of x by four of W.
  const int warp_row = Warp() / 2 * 32, warp_column = Warp() % 2 * 32;
  const int group = GroupOf(Lane()), byte = MemberOf(Lane()) * 16;
  float sums[2][4][4] = {}, totals[2][4][4] = {};
  const int length = SliceLength(launch.k);
  int slice_end = length;
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
    if (k + kChunkedK >= Least(slice_end, launch.k)) {
      BATON_UNROLL for (int i = 0; i < 2; ++i) {
        BATON_UNROLL for (int j = 0; j < 4; ++j) {
          BATON_UNROLL for (int e = 0; e < 4; ++e) {
            totals[i][j][e] = FoldSlice(slice_end == length, totals[i][j][e], sums[i][j][e]);
            sums[i][j][e] = 0;
          }
        }
      }
      slice_end += length;
    }
    stage = (stage + 1) % kStages;
  }
  CopyAsyncWait<0>();
  BATON_UNROLL for (int i = 0; i < 2; ++i) {
    BATON_UNROLL for (int j = 0; j < 4; ++j) {
      BATON_UNROLL for (int e = 0; e < 4; ++e) {
        StoreSum(launch, first_row + warp_row + i * 16 + group + e / 2 * 8,
                 first_column + warp_column + j * 8 + MemberOf(Lane()) * 2 + e % 2,
                 totals[i][j][e]);
      }
    }
  }
}

unsigned Tiles(int size, int tile) { return static_cast<unsigned>((size + tile - 1) / tile); }

template <class Element>
void Dispatch(const MatMulLaunch& launch, bool rows_shape, Stream stream) {
  if (rows_shape) {
    Launch(MatMulRowsKernel<Element>,
           {Tiles(launch.n, kRowsColumns), Tiles(launch.rows, kRowTile), 1}, kRowsThreads,
           kRowsBytes<1>, stream, launch);
  } else {
    Launch(MatMulTileKernel<Element>,
           {Tiles(launch.n, kTileColumns), Tiles(launch.rows, kTileRows), 1}, kTileThreads,
           kStages * kStageBytes, stream, launch);
  }
}

template <class Element>
void Dispatch(const MatMulSiluMulLaunch& launch, Stream stream) {
  Launch(MatMulSiluMulKernel<Element>,
         {Tiles(launch.cols, kRowsColumns), Tiles(launch.rows, kRowTile), 1}, kRowsThreads,
         kRowsBytes<2>, stream, launch);
}

}  // namespace

void LaunchMatMulSiluMul(const MatMulSiluMulLaunch& launch, DType dtype, Stream stream) {
  if (launch.rows == 0 || launch.cols == 0) return;
  if (dtype == DType::kF16) {
    Dispatch<Half>(launch, stream);
  } else {
    Dispatch<BFloat16>(launch, stream);
  }
}

void LaunchMatMul(const MatMulLaunch& launch, DType dtype, Stream stream, MatMulShape shape) {
  if (launch.rows == 0 || launch.n == 0) return;
  const bool rows_shape =
      shape == MatMulShape::kAuto ? launch.rows <= kFewRows : shape == MatMulShape::kRows;
  if (dtype == DType::kF16) {
    Dispatch<Half>(launch, rows_shape, stream);
  } else {
    Dispatch<BFloat16>(launch, rows_shape, stream);
  }
}

}  // namespace baton::backend::cuda
