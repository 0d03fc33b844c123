#include <type_traits>

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/kernels/matmul_rows.cuh"
#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

template <class Element, int kRows, int kTiles>
BATON_KERNEL_RESIDENT(kRowsThreads, kResidentRows)
MatMulRowsKernel(MatMulLaunch launch) {
  using Shape = RowsShape<kRows, kTiles>;
  using X = LoadedRows<kRows, Shape::kAhead>;
  using Outputs = std::conditional_t<(kRows <= kAddedRows), AddedOutputs<kRows, Shape::kColumns>,
                                     StoredOutputs<kRows, Shape::kColumns>>;
  MultiplyRowsOf<Element, kRows, kTiles, X, Outputs>(
      launch, static_cast<int>(BlockIndex().y) * kRows, [] {});
}

template <class Element, int kRows>
BATON_KERNEL_RESIDENT(kRowsThreads, kResidentRows)
MatMulGatedKernel(MatMulGatedLaunch launch) {
  using X = LoadedRows<kRows, RowsShape<kRows, 2>::kAhead>;
  MultiplyGatedRowsOf<Element, kRows, X>(launch, static_cast<int>(BlockIndex().y) * kRows, [] {});
}

template <class Element, int kRows, int kTiles>
void LaunchRows(const MatMulLaunch& launch, Stream stream) {
  using Shape = RowsShape<kRows, kTiles>;
  Launch(MatMulRowsKernel<Element, kRows, kTiles>,
         RowsGrid<Shape>(MatMulTiles(launch.n, Shape::kColumns), MatMulTiles(launch.rows, kRows)),
         kRowsThreads, Shape::kColumnsBytes, stream, launch);
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
  using Shape = RowsShape<kRows, 2>;
  Launch(MatMulGatedKernel<Element, kRows>,
         RowsGrid<Shape>(MatMulTiles(launch.cols, kColumnTile), MatMulTiles(launch.rows, kRows)),
         kRowsThreads, Shape::kColumnsBytes, stream, launch);
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
    return FillsWithWideRows(n) ? MatMulShape::kWideRows : MatMulShape::kNarrowRows;
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
  BATON_CHECK(launch.added_scale == 0 || (launch.rows <= kAddedRows && !IsTile(shape)));
  if (IsTile(shape)) {
    LaunchMatMulTile(launch, dtype, shape, stream);
  } else if (dtype == DType::kF16) {
    Dispatch<Half>(launch, shape, stream);
  } else {
    Dispatch<BFloat16>(launch, shape, stream);
  }
}

}  // namespace baton::backend::cuda
