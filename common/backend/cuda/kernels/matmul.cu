#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/kernels/matmul_rows.cuh"

namespace baton::backend::cuda {
namespace {

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
  PrefetchSlice(launch.k, w);
  AwaitPrevious();
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
  const uint16_t* const w[2] = {MatrixRow(launch.w, column, launch.k),
                                MatrixRow(launch.w, launch.cols + column, launch.k)};
  PrefetchSlice(launch.k, w);
  AwaitPrevious();
  SumSlice<Element, kRows>(launch, first_row, w);
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
