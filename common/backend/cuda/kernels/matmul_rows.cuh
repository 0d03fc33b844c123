// Products of few rows: what a block of MatMulRowsKernel does, for all kernels that multiply so.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_ROWS_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_ROWS_CUH_

#include <algorithm>

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

// The rows of x of a warp's slice that the lane's group loads: with each chunk of W, to the same
// place of a ring in registers...
template <int kRows, int kAheadChunks>
class LoadedRows {
 public:
  static constexpr int kAhead = kAheadChunks;

  // k: the lane's first one.
  template <class Matrices>
  BATON_DEVICE LoadedRows(const Matrices& launch, int first_row, int k) {
    BATON_UNROLL for (int i = 0; i < kEights; ++i) {
      // Rows that there are not are those of others, and not stored.
      const int row = Least(first_row + i * 8 + GroupOf(Lane()), launch.rows - 1);
      x_[i] = XRow(launch, row) + k;
    }
  }
  BATON_DEVICE void Move(int k) { BATON_UNROLL for (int i = 0; i < kEights; ++i) x_[i] += k; }
  BATON_DEVICE void Fetch(int slot, int k, bool whole, bool valid) {
    BATON_UNROLL for (int i = 0; i < kEights; ++i) {
      held_[slot][i] = whole ? Load16(x_[i] + k) : Load16If(valid, x_[i] + k);
    }
  }
  BATON_DEVICE Vec16 At(int slot, int i, [[maybe_unused]] bool valid) const {
    return held_[slot][i];
  }

 private:
  static constexpr int kEights = kRows / 8;
  const uint16_t* x_[kEights];
  Vec16 held_[kAhead][kEights];
};

// ... or from shared memory, where the block has put all rows, StagedStride apart, from byte
// kOffset on.
BATON_INDEX_MAP int StagedStride(int k) {
  // 64 bytes beyond whole rows of banks: two rows' chunks lie in different banks. Behind k there
  // are zeros up to a whole chunk.
  return (k + 63) / 64 * 64 + 32;
}
template <size_t kOffset>
class StagedRows {
 public:
  static constexpr int kAhead = 8;

  static BATON_DEVICE uint16_t* Row(int row, int k) {
    return reinterpret_cast<uint16_t*>(SharedMemory() + kOffset) + row * StagedStride(k);
  }
  template <class Matrices>
  BATON_DEVICE StagedRows(const Matrices& launch, [[maybe_unused]] int first_row, int k)
      : x_(Row(Least(GroupOf(Lane()), launch.rows - 1), launch.k) + k) {}
  BATON_DEVICE void Move(int k) { x_ += k; }
  BATON_DEVICE void Fetch(int, int, bool, bool) {}
  // valid: whether the slice has this chunk.
  BATON_DEVICE Vec16 At(int slot, int, bool valid) const {
    return valid ? LoadShared16(x_ + slot * kChunkedK) : Vec16{};
  }

 private:
  const uint16_t* x_;
};

// A warp's slice of the products of rows with a set of columns. Its chunks lie in a ring in
// registers: multiplying one makes room for the one that comes kAhead later.
template <class Element, int kRows, int kTiles,
          class X = LoadedRows<kRows, RowsShape<kRows, kTiles>::kAhead>>
class SliceOfRows {
 public:
  // launch: MatMulLaunch, or what has its rows and k, and what X reads.
  template <class Matrices>
  BATON_DEVICE SliceOfRows(const Matrices& launch, int first_row)
      : begin_(Warp() * SliceLength(launch.k)),
        length_(Least(SliceLength(launch.k), launch.k - begin_)),
        left_(length_),
        x_(launch, first_row, FirstK()) {}

  // Asks for the first chunks of a set of columns. w: the rows of W that the lane's group loads.
  BATON_DEVICE void Begin(const uint16_t* const (&w)[kTiles]) {
    x_.Move(left_ - length_);  // back from where the set before ended
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) w_[tile] = w[tile] + FirstK();
    left_ = length_;
    if (left_ <= 0) return;
    BATON_UNROLL for (int i = 0; i < X::kAhead; ++i) Fetch<Refill::kEdge>(i, i);
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
  static constexpr int kTurn = X::kAhead * kChunkedK;  // k's

  BATON_DEVICE int FirstK() const { return begin_ + MemberOf(Lane()) * kChunkElements; }

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
    x_.Fetch(slot, k, kWhole, valid);
  }

  // Once around.
  template <Refill kRefill>
  BATON_DEVICE void Turn(Sums& sums) {
    BATON_UNROLL for (int slot = 0; slot < X::kAhead; ++slot) {
      const bool valid = kRefill != Refill::kNone || slot * kChunkedK < left_;
      BATON_UNROLL for (int i = 0; i < Shape::kEights; i += 2) {
        const Vec16 low = x_.At(slot, i, valid);
        // The products with rows 8 to 15, which 8 rows lack, are not stored: any operand does, and
        // these are at hand in the registers behind the low ones.
        const Vec16 high = Shape::kEights == 1
                               ? Vec16{{low.x[1], low.x[1], low.x[3], low.x[3]}}
                               : x_.At(slot, Least(i + 1, Shape::kEights - 1), valid);
        const RowsOperand operand(low, high, hidden_zero_);
        BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          Accumulate<Element>(sums[i / 2][tile], operand, weights_[slot][tile]);
        }
      }
      Fetch<kRefill>(slot, slot + X::kAhead);
    }
    x_.Move(kTurn);
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) w_[tile] += kTurn;
    left_ -= kTurn;
  }

  const int begin_, length_;  // of the slice, in k's
  int left_;                  // of them, from the oldest chunk on
  X x_;
  const uint16_t* w_[kTiles];
  uint32_t hidden_zero_ = kRows > 8 ? HiddenZero() : 0;
  Vec16 weights_[X::kAhead][kTiles];
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

// The same in two parts, before slices are summed and afterwards: what the result is added to is on
// its way meanwhile.
template <int kRows, int kColumns>
class AddedOutputs {
 public:
  template <class Matrices>
  BATON_DEVICE AddedOutputs(const Matrices& launch, int first_row, int first_column)
      : row_(first_row + ThreadIndex() / kColumns),
        column_(first_column + ThreadIndex() % kColumns),
        exists_(ThreadIndex() < kOutputs && row_ < launch.rows && column_ < launch.n) {
    if (launch.added_scale != 0 && exists_) {
      before_ = LoadFresh(OutRow(launch, row_) + column_);
    }
  }
  template <class Matrices>
  BATON_DEVICE void Store(const Matrices& launch, const float* sums) const {
    if (!exists_) return;
    float result =
        Biased(launch.bias, column_, FoldSlices(launch.k, sums + ThreadIndex(), kOutputs));
    if (launch.added_scale != 0) result = Fma(result, launch.added_scale, before_);
    StoreGlobal(OutRow(launch, row_) + column_, result);
  }

 private:
  static constexpr int kOutputs = kRows * kColumns;
  static_assert(kOutputs <= kRowsThreads);
  int row_, column_;
  bool exists_;
  float before_ = 0;
};
// Where nothing is added.
template <int kRows, int kColumns>
class StoredOutputs {
 public:
  template <class Matrices>
  BATON_DEVICE StoredOutputs(const Matrices&, int first_row, int first_column)
      : first_row_(first_row), first_column_(first_column) {}
  template <class Matrices>
  BATON_DEVICE void Store(const Matrices& launch, const float* sums) const {
    StoreSums<kRows, kColumns>(launch, first_row_, first_column_, sums);
  }

 private:
  int first_row_, first_column_;
};

template <class Element, int kRows, class Matrices>
BATON_DEVICE void StoreGatedSums(const Matrices& launch, int first_row, int first_column,
                                 const float* sums) {
  constexpr int kColumns = 2 * kColumnTile;
  StoreGated<Element, kRows>(launch, first_row, first_column, [&](int row, int column) {
    return FoldSlices(launch.k, sums + row * kColumns + column, kRows * kColumns);
  });
}

// A block's products of rows with sets of columns, of which it takes every Grid().x-th of `sets` if
// its shape takes several. The next set's loads are on their way while slices are folded, so that
// the memory does not wait for the end of one block and the beginning of another. A kernel calls
// this first: it awaits the kernel before. columns(set, w) fills in w, as MultiplyRows takes it.
// stage() makes x, if the block does that; the first weights are on their way meanwhile. ask(set)
// loads what store will need. store(set, asked, sums) takes the sums of all slices. The threads do
// all of it together.
template <class Element, int kRows, int kTiles, class X, class Matrices, class Columns, class Stage,
          class Ask, class Store>
BATON_DEVICE void MultiplyColumns(const Matrices& launch, int first_row, int sets,
                                  const Columns& columns, const Stage& stage, const Ask& ask,
                                  const Store& store) {
  using Shape = RowsShape<kRows, kTiles>;
  int set = static_cast<int>(BlockIndex().x);
  const uint16_t* w[kTiles];
  columns(set, w);
  PrefetchSlice(launch.k, w);
  AwaitPrevious();
  SliceOfRows<Element, kRows, kTiles, X> slice(launch, first_row);
  slice.Begin(w);
  stage();
  float* const sums = reinterpret_cast<float*>(SharedMemory());
  int buffer = 0;  // the other one is folded meanwhile
  BATON_NO_UNROLL for (;;) {
    const auto asked = ask(set);
    slice.Multiply(sums + buffer);
    const int multiplied = set;
    set += static_cast<int>(Grid().x);
    const bool more = Shape::kSeveral && set < sets;  // whole blocks agree
    if (more) {
      columns(set, w);
      slice.Begin(w);
    }
    SyncThreads();
    store(multiplied, asked, sums + buffer);
    if (!more) return;
    buffer = Shape::kSums - buffer;
  }
}

// Rows of a product, and of one whose gates are applied: MultiplyColumns with what the launch has.
// A block takes kTiles tiles of columns; of the second, a tile of gate's and the same of up's.
template <class Element, int kRows, int kTiles, class X, class Outputs, class Matrices, class Stage>
BATON_DEVICE void MultiplyRowsOf(const Matrices& launch, int first_row, const Stage& stage) {
  constexpr int kColumns = RowsShape<kRows, kTiles>::kColumns;
  MultiplyColumns<Element, kRows, kTiles, X>(
      launch, first_row, static_cast<int>(MatMulTiles(launch.n, kColumns)),
      [&](int set, const uint16_t*(&w)[kTiles]) {
        BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          const int column = set * kColumns + tile * kColumnTile + GroupOf(Lane());
          w[tile] = MatrixRow(launch.w, Least(column, launch.n - 1), launch.k);
        }
      },
      stage, [&](int set) { return Outputs(launch, first_row, set * kColumns); },
      [&](int, const Outputs& outputs, const float* sums) { outputs.Store(launch, sums); });
}
template <class Element, int kRows, class X, class Matrices, class Stage>
BATON_DEVICE void MultiplyGatedRowsOf(const Matrices& launch, int first_row, const Stage& stage) {
  MultiplyColumns<Element, kRows, 2, X>(
      launch, first_row, static_cast<int>(MatMulTiles(launch.cols, kColumnTile)),
      [&](int set, const uint16_t*(&w)[2]) {
        const int column = set * kColumnTile + GroupOf(Lane());
        w[0] = MatrixRow(launch.w, column, launch.k);
        w[1] = MatrixRow(launch.w, launch.cols + column, launch.k);
      },
      stage, [](int) { return 0; },
      [&](int set, int, const float* sums) {
        StoreGatedSums<Element, kRows>(launch, first_row, set * kColumnTile, sums);
      });
}

// Whether blocks of two tiles of columns leave no multiprocessor idle.
inline bool FillsWithWideRows(int n) {
  return MatMulTiles(n, 2 * kColumnTile) >= static_cast<unsigned>(Multiprocessors());
}

inline constexpr int kResidentRows = 2;  // blocks of a multiprocessor

// For so many sets of columns: as many blocks as multiprocessors hold at once, if each takes
// several. Then one set of rows is all.
template <class Shape>
GridSize RowsGrid(unsigned sets, unsigned row_sets) {
  const unsigned at_once = static_cast<unsigned>(kResidentRows * Multiprocessors());
  return {Shape::kSeveral ? std::min(sets, at_once) : sets, row_sets, 1};
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_ROWS_CUH_
