#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"

namespace baton::backend::cuda {
namespace {

// A warp a slice, for the same rows of x (8, 16 or 32) by tiles of 8 columns.
constexpr int kRowsThreads = kSlices * kWarpLanes;

template <int kRows, int kTiles>
struct RowsShape {
  static constexpr int kEights = kRows / 8;  // of rows: one load of x
  static constexpr int kColumns = kTiles * kColumnTile;
  static constexpr int kOutputs = kRows * kColumns;
  // Chunks of 32 k's that are on their way at once, at most: 256 bytes a lane or more.
  static constexpr int kAhead = (16 + kTiles + kEights - 1) / (kTiles + kEights);
  // Dynamic shared memory: [slice][row][column].
  static constexpr size_t kBytes = kSlices * kOutputs * sizeof(float);
};

// What a slot is filled with once its chunk is multiplied: one that lies in the slice as a whole,
// one that may not, or nothing.
enum class Refill { kWhole, kEdge, kNone };

// The chunks that a warp multiplies: a ring in registers. Multiplying one makes room for the one
// that comes kAhead later.
template <class Element, int kRows, int kTiles>
struct Ring {
  using Shape = RowsShape<kRows, kTiles>;
  static constexpr int kTurn = Shape::kAhead * kChunkedK;  // k's
  const uint16_t* x[Shape::kEights];
  const uint16_t* w[kTiles];
  int left;  // k's of the slice from the oldest chunk on
  uint32_t hidden_zero = kRows > 8 ? HiddenZero() : 0;
  Vec16 rows[Shape::kAhead][Shape::kEights], weights[Shape::kAhead][kTiles];
  float sums[(Shape::kEights + 1) / 2][kTiles][4] = {};

  // Chunk number `at` from the oldest one on. Zeros behind the slice's end change no sum.
  template <Refill kRefill>
  BATON_DEVICE void Fetch(int slot, int at) {
    if (kRefill == Refill::kNone) return;
    constexpr bool kWhole = kRefill == Refill::kWhole;
    const int k = at * kChunkedK;
    const bool valid = kWhole || k + MemberOf(Lane()) * kChunkElements < left;
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      weights[slot][tile] = kWhole ? Load16Once(w[tile] + k) : Load16If(valid, w[tile] + k);
    }
    BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) {
      rows[slot][i] = kWhole ? Load16(x[i] + k) : Load16If(valid, x[i] + k);
    }
  }

  // Once around.
  template <Refill kRefill>
  BATON_DEVICE void Turn() {
    BATON_UNROLL for (int slot = 0; slot < Shape::kAhead; ++slot) {
      BATON_UNROLL for (int i = 0; i < Shape::kEights; i += 2) {
        const Vec16& low = rows[slot][i];
        // The products with rows 8 to 15, which 8 rows lack, are not stored: any operand does, and
        // these are at hand in the registers behind the low ones.
        const Vec16 high = Shape::kEights == 1 ? Vec16{{low.x[1], low.x[1], low.x[3], low.x[3]}}
                                               : rows[slot][Least(i + 1, Shape::kEights - 1)];
        const RowsOperand operand(low, high, hidden_zero);
        BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          Accumulate<Element>(sums[i / 2][tile], operand, weights[slot][tile]);
        }
      }
      Fetch<kRefill>(slot, slot + Shape::kAhead);
    }
    BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) x[i] += kTurn;
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) w[tile] += kTurn;
    left -= kTurn;
  }
};

// Leaves the warp's sums in shared memory. w: the rows of W that the lane's group loads. The caller
// synchronizes.
template <class Element, int kRows, int kTiles, class Matrices>
BATON_DEVICE void SumSlice(const Matrices& launch, int first_row,
                           const uint16_t* const (&w)[kTiles]) {
  using Shape = RowsShape<kRows, kTiles>;
  const int group = GroupOf(Lane()), member = MemberOf(Lane());
  const int length = SliceLength(launch.k), begin = Warp() * length;
  constexpr int kLine = 64;  // k's in 128 bytes
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    PrefetchL2(w[tile] + Least(begin + member * kLine, launch.k - 1));
  }
  AwaitPrevious();
  const int offset = begin + member * kChunkElements;
  Ring<Element, kRows, kTiles> ring;
  BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) {
    // Rows that there are not are those of others, and not stored.
    ring.x[i] =
        MatrixRow(launch.x, Least(first_row + i * 8 + group, launch.rows - 1), launch.x_stride) +
        offset;
  }
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) ring.w[tile] = w[tile] + offset;
  ring.left = Least(length, launch.k - begin);
  if (ring.left > 0) {
    BATON_UNROLL for (int i = 0; i < Shape::kAhead; ++i) ring.template Fetch<Refill::kEdge>(i, i);
    BATON_NO_UNROLL while (ring.left >= 2 * ring.kTurn) ring.template Turn<Refill::kWhole>();
    BATON_NO_UNROLL while (ring.left > ring.kTurn) ring.template Turn<Refill::kEdge>();
    ring.template Turn<Refill::kNone>();
  }
  float* shared = reinterpret_cast<float*>(SharedMemory()) + Warp() * Shape::kOutputs;
  BATON_UNROLL for (int i = 0; i < Shape::kEights; ++i) {
    BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
      BATON_UNROLL for (int e = 0; e < 2; ++e) {
        shared[(i * 8 + group) * Shape::kColumns + tile * kColumnTile + member * 2 + e] =
            ring.sums[i / 2][tile][i % 2 * 2 + e];
      }
    }
  }
}

template <int kOutputs>
BATON_DEVICE float FoldSlices(int k, int index) {
  const int length = SliceLength(k);
  const float* shared = reinterpret_cast<const float*>(SharedMemory());
  float total = kNoSlice;
  for (int slice = 0; slice < kSlices && slice * length < k; ++slice) {
    total = Add(total, shared[slice * kOutputs + index]);
  }
  return total;
}

template <class Element, int kRows, int kTiles>
BATON_KERNEL_RESIDENT(kRowsThreads, 2)
MatMulRowsKernel(MatMulLaunch launch) {
  using Shape = RowsShape<kRows, kTiles>;
  const int first_column = static_cast<int>(BlockIndex().x) * Shape::kColumns;
  const int first_row = static_cast<int>(BlockIndex().y) * kRows;
  const uint16_t* w[kTiles];
  BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
    const int column = first_column + tile * kColumnTile + GroupOf(Lane());
    w[tile] = MatrixRow(launch.w, Least(column, launch.n - 1), launch.k);
  }
  SumSlice<Element, kRows>(launch, first_row, w);
  SyncThreads();
  for (int i = ThreadIndex(); i < Shape::kOutputs; i += kRowsThreads) {
    StoreSum(launch, first_row + i / Shape::kColumns, first_column + i % Shape::kColumns,
             FoldSlices<Shape::kOutputs>(launch.k, i));
  }
}

// A tile of gate's columns and the same of up's.
template <class Element, int kRows>
BATON_KERNEL_RESIDENT(kRowsThreads, 2)
MatMulGatedKernel(MatMulGatedLaunch launch) {
  using Shape = RowsShape<kRows, 2>;
  const int first_column = static_cast<int>(BlockIndex().x) * kColumnTile;
  const int first_row = static_cast<int>(BlockIndex().y) * kRows;
  const int column = first_column + GroupOf(Lane());
  SumSlice<Element, kRows, 2>(
      launch, first_row,
      {MatrixRow(launch.w, column, launch.k), MatrixRow(launch.w, launch.cols + column, launch.k)});
  SyncThreads();
  // Two columns a thread: one access.
  const int row = ThreadIndex() / (kColumnTile / 2), pair = ThreadIndex() % (kColumnTile / 2) * 2;
  if (row >= kRows || first_row + row >= launch.rows) return;
  float gated[2];
  BATON_UNROLL for (int i = 0; i < 2; ++i) {
    const int gate = row * Shape::kColumns + pair + i;
    gated[i] = Gated(FoldSlices<Shape::kOutputs>(launch.k, gate),
                     FoldSlices<Shape::kOutputs>(launch.k, gate + kColumnTile), launch.gating);
  }
  uint16_t* out = static_cast<uint16_t*>(launch.out) + (first_row + row) * launch.out_stride +
                  first_column + pair;
  StoreGlobal(reinterpret_cast<uint32_t*>(out), Element::Pack(gated[0], gated[1]));
}

template <class Element, int kRows, int kTiles>
void LaunchRows(const MatMulLaunch& launch, Stream stream) {
  using Shape = RowsShape<kRows, kTiles>;
  Launch(MatMulRowsKernel<Element, kRows, kTiles>,
         {MatMulTiles(launch.n, Shape::kColumns), MatMulTiles(launch.rows, kRows), 1}, kRowsThreads,
         Shape::kBytes, stream, launch);
}

template <class Element, int kTiles>
void LaunchRows(const MatMulLaunch& launch, Stream stream) {
  if (launch.rows <= 8) {
    LaunchRows<Element, 8, kTiles>(launch, stream);
  } else if (launch.rows <= 16) {
    LaunchRows<Element, 16, kTiles>(launch, stream);
  } else {
    LaunchRows<Element, 32, kTiles>(launch, stream);
  }
}

template <class Element>
void Dispatch(const MatMulLaunch& launch, MatMulShape shape, Stream stream) {
  if (shape == MatMulShape::kWideRows) {
    LaunchRows<Element, 2>(launch, stream);
  } else {
    LaunchRows<Element, 1>(launch, stream);
  }
}

template <class Element, int kRows>
void LaunchGated(const MatMulGatedLaunch& launch, Stream stream) {
  Launch(MatMulGatedKernel<Element, kRows>,
         {MatMulTiles(launch.cols, kColumnTile), MatMulTiles(launch.rows, kRows), 1}, kRowsThreads,
         RowsShape<kRows, 2>::kBytes, stream, launch);
}

template <class Element>
void Dispatch(const MatMulGatedLaunch& launch, Stream stream) {
  if (launch.rows <= 8) {
    LaunchGated<Element, 8>(launch, stream);
  } else if (launch.rows <= 16) {
    LaunchGated<Element, 16>(launch, stream);
  } else {
    LaunchGated<Element, 32>(launch, stream);
  }
}

MatMulShape Concrete(MatMulShape shape, int rows, int n) {
  const auto multiprocessors = static_cast<unsigned>(Multiprocessors());
  if (shape == MatMulShape::kAuto) {
    shape = rows <= kFewRows ? MatMulShape::kRows : MatMulShape::kTile;
  }
  if (shape == MatMulShape::kRows) {
    const bool fill = MatMulTiles(n, 2 * kColumnTile) >= multiprocessors;
    return fill ? MatMulShape::kWideRows : MatMulShape::kNarrowRows;
  }
  if (shape == MatMulShape::kTile) {
    // Instructions and bytes of shared memory of a block of 128 x 128 are 8/3 of those of one of
    // 64 x 64.
    const auto time = [&](int side, unsigned of_block) {
      const unsigned blocks = MatMulTiles(rows, side) * MatMulTiles(n, side);
      return (blocks + multiprocessors - 1) / multiprocessors * of_block;
    };
    return time(128, 8) <= time(64, 3) ? MatMulShape::kLargeTile : MatMulShape::kSmallTile;
  }
  return shape;
}

bool IsTile(MatMulShape shape) {
  return shape == MatMulShape::kSmallTile || shape == MatMulShape::kLargeTile;
}

}  // namespace

void LaunchMatMulGated(const MatMulGatedLaunch& launch, DType dtype, Stream stream,
                       MatMulShape shape) {
  if (launch.rows == 0 || launch.cols == 0) return;
  shape = Concrete(shape, launch.rows, 2 * launch.cols);
  if (IsTile(shape)) {
    LaunchMatMulTile(launch, dtype, shape, stream);
  } else if (dtype == DType::kF16) {
    Dispatch<Half>(launch, stream);
  } else {
    Dispatch<BFloat16>(launch, stream);
  }
}

void LaunchMatMul(const MatMulLaunch& launch, DType dtype, Stream stream, MatMulShape shape) {
  if (launch.rows == 0 || launch.n == 0) return;
  shape = Concrete(shape, launch.rows, launch.n);
  if (IsTile(shape)) {
    LaunchMatMulTile(launch, dtype, shape, stream);
  } else if (dtype == DType::kF16) {
    Dispatch<Half>(launch, shape, stream);
  } else {
    Dispatch<BFloat16>(launch, shape, stream);
  }
}

}  // namespace baton::backend::cuda
