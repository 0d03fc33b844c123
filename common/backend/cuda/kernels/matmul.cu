#include <algorithm>

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/kernels/matmul_rows.cuh"

namespace baton::backend::cuda {
namespace {

constexpr int kResident = 2;  // blocks of a multiprocessor

template <class Element, int kRows, int kTiles>
BATON_KERNEL_RESIDENT(kRowsThreads, kResident)
MatMulRowsKernel(MatMulLaunch launch) {
  using Shape = RowsShape<kRows, kTiles>;
  const int first_row = static_cast<int>(BlockIndex().y) * kRows;
  MultiplyColumns<Element, kRows, kTiles>(
      launch, first_row, static_cast<int>(MatMulTiles(launch.n, Shape::kColumns)),
      [&](int set, const uint16_t*(&w)[kTiles]) {
        BATON_UNROLL for (int tile = 0; tile < kTiles; ++tile) {
          const int column = set * Shape::kColumns + tile * kColumnTile + GroupOf(Lane());
          w[tile] = MatrixRow(launch.w, Least(column, launch.n - 1), launch.k);
        }
      },
      [&](int set, const float* sums) {
        StoreSums<kRows, Shape::kColumns>(launch, first_row, set * Shape::kColumns, sums);
      });
}

// A tile of gate's columns and the same of up's.
template <class Element, int kRows>
BATON_KERNEL_RESIDENT(kRowsThreads, kResident)
MatMulGatedKernel(MatMulGatedLaunch launch) {
  const int first_row = static_cast<int>(BlockIndex().y) * kRows;
  MultiplyColumns<Element, kRows, 2>(
      launch, first_row, static_cast<int>(MatMulTiles(launch.cols, kColumnTile)),
      [&](int set, const uint16_t*(&w)[2]) {
        const int column = set * kColumnTile + GroupOf(Lane());
        w[0] = MatrixRow(launch.w, column, launch.k);
        w[1] = MatrixRow(launch.w, launch.cols + column, launch.k);
      },
      [&](int set, const float* sums) {
        StoreGatedSums<Element, kRows>(launch, first_row, set * kColumnTile, sums);
      });
}

// For so many columns: as many blocks as multiprocessors hold at once, if each takes several sets.
template <class Shape>
GridSize RowsGrid(unsigned sets, unsigned row_sets) {
  const unsigned at_once = static_cast<unsigned>(kResident * Multiprocessors());
  const unsigned most = Shape::kSeveral ? std::max(1u, at_once / row_sets) : sets;
  return {std::min(sets, most), row_sets, 1};
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
