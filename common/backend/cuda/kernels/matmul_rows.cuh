// Products of few rows: what a block of MatMulRowsKernel does, for all kernels that multiply so.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_ROWS_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_ROWS_CUH_

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// A warp takes a slice, for the same rows of x (8, 16 or 32) by tiles of 8 columns.
template <int kRows, int kTiles>
struct RowsShape {
  static constexpr int kEights = kRows / 8;  // of rows: one load of x
  static constexpr int kColumns = kTiles * kColumnTile;
  static constexpr int kOutputs = kRows * kColumns;
  // Chunks of 32 k's that are on their way at once, at most: 256 bytes a lane or more.
  static constexpr int kAhead = (16 + kTiles + kEights - 1) / (kTiles + kEights);
  // Dynamic shared memory of a block that multiplies one set of columns: [slice][row][column].
  static constexpr int kSums = kSlices * kOutputs;
  static constexpr size_t kBytes = kSums * sizeof(float);
  // Whether a block of MultiplyColumns multiplies several, which takes the sums of two of them. 32
  // rows leave no registers for that.
  static constexpr bool kSeveral = kRows <= 16;
  static constexpr size_t kColumnsBytes = (kSeveral ? 2 : 1) * kBytes;
};

// What a slot is filled with once its chunk is multiplied: one that lies in the slice as a whole,
// one that may not, or nothing.
enum class Refill { kWhole, kEdge, kNone };

// A warp's slice of the products of rows with a set of columns. Its chunks lie in a ring in
// registers: multiplying one makes room for the one that comes kAhead later.
template <class Element, int kRows, int kTiles>
class SliceOfRows {
 public:
  // launch: MatMulLaunch, or what has its x, rows and k.
  template <class Matrices>
  BATON_DEVICE SliceOfRows(const Matrices& launch, int first_row) {
    const int begin = Warp() * SliceLength(launch.k);
    offset_ = begin + MemberOf(Lane()) * kChunkElements;
    length_ = Least(SliceLength(launch.k), launch.k - begin);
    BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) {
      // Rows that there are not are those of others, and not stored.
      const int row = Least(first_row + i * 8 + GroupOf(Lane()), launch.rows - 1);
      x_[i] = XRow(launch, row) + offset_;
    }
    left_ = length_;
  }

  // Asks for the first chunks of a set of columns. w: the rows of W that the lane's group loads.
  BATON_DEVICE void Begin(const uint16_t* const (&w)[kTiles]) {
    // Back from where the set before ended.
    BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) x_[i] -= length_ - left_;
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) w_[tile] = w[tile] + offset_;
    left_ = length_;
    if (left_ <= 0) return;
    BATON_UNROLL for (int i = 0; i < Shape::kAhead; ++i) Fetch<Refill::kEdge>(i, i);
  }

  // Leaves the sums in shared memory: [slice][row][column] from `sums` on. The caller synchronizes.
  BATON_DEVICE void Multiply(float* sums) {
    Sums of_slice = {};
    if (left_ > 0) {
      BATON_NO_UNROLL while (left_ >= 2 * kTurn) Turn<Refill::kWhole>(of_slice);
      BATON_NO_UNROLL while (left_ > kTurn) Turn<Refill::kEdge>(of_slice);
      Turn<Refill::kNone>(of_slice);
    }
    sums += Warp() * Shape::kOutputs;
    BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) {
      BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
        BATON_UNROLL for (int e = 0; e < 2; ++e) {
          const int column = tile * kColumnTile + MemberOf(Lane()) * 2 + e;
          sums[(i * 8 + GroupOf(Lane())) * Shape::kColumns + column] =
              of_slice[i / 2][tile][i % 2 * 2 + e];
        }
      }
    }
  }

 private:
  using Shape = RowsShape<kRows, kTiles>;
  using Sums = float[(Shape::kEights + 1) / 2][kTiles][4];
  static constexpr int kTurn = Shape::kAhead * kChunkedK;  // k's

  // Chunk number `at` from the oldest one on. Zeros behind the slice's end change no sum.
  template <Refill kRefill>
  BATON_DEVICE void Fetch(int slot, int at) {
    if (kRefill == Refill::kNone) return;
    constexpr bool kWhole = kRefill == Refill::kWhole;
    const int k = at * kChunkedK;
    const bool valid = kWhole || k + MemberOf(Lane()) * kChunkElements < left_;
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      weights_[slot][tile] = kWhole ? Load16Once(w_[tile] + k) : Load16If(valid, w_[tile] + k);
    }
    BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) {
      rows_[slot][i] = kWhole ? Load16(x_[i] + k) : Load16If(valid, x_[i] + k);
    }
  }

  // Once around.
  template <Refill kRefill>
  BATON_DEVICE void Turn(Sums& sums) {
    BATON_UNROLL for (int slot = 0; slot < Shape::kAhead; ++slot) {
      BATON_UNROLL for (int i = 0; i < Shape::kEights; i += 2) {
        const Vec16& low = rows_[slot][i];
        // The products with rows 8 to 15, which 8 rows lack, are not stored: any operand does, and
        // these are at hand in the registers behind the low ones.
        const Vec16 high = Shape::kEights == 1 ? Vec16{{low.x[1], low.x[1], low.x[3], low.x[3]}}
                                               : rows_[slot][Least(i + 1, Shape::kEights - 1)];
        const RowsOperand operand(low, high, hidden_zero_);
        BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          Accumulate<Element>(sums[i / 2][tile], operand, weights_[slot][tile]);
        }
      }
      Fetch<kRefill>(slot, slot + Shape::kAhead);
    }
    BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) x_[i] += kTurn;
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) w_[tile] += kTurn;
    left_ -= kTurn;
  }

  const uint16_t* x_[Shape::kEights];
  const uint16_t* w_[kTiles];
  int offset_, length_;  // the lane's first k, and the slice's k's
  int left_;             // of them, from the oldest chunk on
  uint32_t hidden_zero_ = kRows > 8 ? HiddenZero() : 0;
  Vec16 rows_[Shape::kAhead][Shape::kEights], weights_[Shape::kAhead][kTiles];
};

// Asks for the beginning of the warp's slice of W; before AwaitPrevious.
template <int kTiles>
BATON_DEVICE void PrefetchSlice(int k, const uint16_t* const (&w)[kTiles]) {
  constexpr int kLine = 64;  // k's in 128 bytes
  const int begin = Warp() * SliceLength(k);
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    PrefetchL2(w[tile] + Least(begin + MemberOf(Lane()) * kLine, k - 1));
  }
}

// A block's product of rows with one set of columns, its slices' sums in shared memory. w: as for
// SliceOfRows::Begin.
template <class Element, int kRows, int kTiles, class Matrices>
BATON_DEVICE const float* MultiplyRows(const Matrices& launch, int first_row,
                                    const uint16_t* const (&w)[kTiles]) {
  SliceOfRows<Element, kRows, kTiles> slice(launch, first_row);
  slice.Begin(w);
  float* const sums = reinterpret_cast<float*>(SharedMemory());
  slice.Multiply(sums);
  SyncThreads();
  return sums;
}

// Folds the slices of kRows rows by kColumns columns, and stores what there is of the result.
template <int kRows, int kColumns, class Matrices>
BATON_DEVICE void StoreSums(const Matrices& launch, int first_row, int first_column,
                            const float* sums) {
  constexpr int kOutputs = kRows * kColumns;
  for (int i = ThreadIndex(); i < kOutputs; i += kRowsThreads) {
    StoreSum(launch, first_row + i / kColumns, first_column + i % kColumns,
             FoldSlices(launch.k, sums + i, kOutputs));
  }
}
template <class Element, int kRows, class Matrices>
BATON_DEVICE void StoreGatedSums(const Matrices& launch, int first_row, int first_column,
                                 const float* sums) {
  constexpr int kColumns = 2 * kColumnTile;
  StoreGated<Element, kRows>(launch, first_row, first_column, [&](int row, int column) {
    return FoldSlices(launch.k, sums + row * kColumns + column, kRows * kColumns);
  });
}

// The same with sets of columns, of which a block takes every Grid().x-th of `sets` if its shape
// takes several. The next set's loads are on their way while slices are folded, so that the memory
// does not wait for the end of one block and the beginning of another. The first thing that a
// kernel does: awaits the one before it. columns(set, w): fills in w. store(set, sums): of all
// slices; the threads together.
template <class Element, int kRows, int kTiles, class Matrices, class Columns, class Store>
BATON_DEVICE void MultiplyColumns(const Matrices& launch, int first_row, int sets,
                                  const Columns& columns, const Store& store) {
  using Shape = RowsShape<kRows, kTiles>;
  int set = static_cast<int>(BlockIndex().x);
  const uint16_t* w[kTiles];
  columns(set, w);
  PrefetchSlice(launch.k, w);
  AwaitPrevious();
  SliceOfRows<Element, kRows, kTiles> slice(launch, first_row);
  slice.Begin(w);
  float* const sums = reinterpret_cast<float*>(SharedMemory());
  int buffer = 0;  // the other one is folded meanwhile
  BATON_NO_UNROLL for (;;) {
    slice.Multiply(sums + buffer);
    const int multiplied = set;
    set += static_cast<int>(Grid().x);
    const bool more = Shape::kSeveral && set < sets;  // whole blocks agree
    if (more) {
      columns(set, w);
      slice.Begin(w);
    }
    SyncThreads();
    store(multiplied, sums + buffer);
    if (!more) return;
    buffer = Shape::kSums - buffer;
  }
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_ROWS_CUH_
