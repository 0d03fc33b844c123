#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/latent.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/kernels/matmul_rows.cuh"
#include "common/backend/cuda/kernels/matmul_tile.cuh"

namespace baton::backend::cuda {
namespace {

// The product of one head, which the block's place in the grid says.
BATON_DEVICE MatMulLaunch OwnProduct(const HeadMatMulLaunch& all) {
  const auto head = static_cast<int64_t>(BlockIndex().z);
  return {.x = MatrixRow(all.x, head, all.k),
          .x_stride = all.x_stride,
          .w = MatrixRow(all.w, head * all.n, all.k),
          .bias = nullptr,
          .out = all.out + head * all.head_stride,
          .out_stride = all.out_stride,
          .rows = all.rows,
          .n = all.n,
          .k = all.k};
}

constexpr int kHeadTiles = 2;  // of columns, a block

template <class Element, int kRows>
BATON_KERNEL_RESIDENT(kRowsThreads, kResidentRows)
HeadRowsKernel(HeadMatMulLaunch launch) {
  using Shape = RowsShape<kRows, kHeadTiles>;
  const MatMulLaunch own = OwnProduct(launch);
  const int first_column = static_cast<int>(BlockIndex().x) * Shape::kColumns;
  const int first_row = static_cast<int>(BlockIndex().y) * kRows;
  const uint16_t* w[kHeadTiles];
  BATON_UNROLL for (int tile = 0; tile < kHeadTiles; ++tile) {
    const int column = first_column + tile * kColumnTile + GroupOf(Lane());
    w[tile] = MatrixRow(own.w, Least(column, own.n - 1), own.k);
  }
  AwaitPrevious();
  StoreSums<kRows, Shape::kColumns>(own, first_row, first_column,
                                    MultiplyRows<Element, kRows>(own, first_row, w));
}

constexpr int kSide = 64;

template <class Element>
BATON_KERNEL(TileShape<kSide>::kThreads)
HeadTileKernel(HeadMatMulLaunch launch) {
  AwaitPrevious();
  MultiplyTile<Product<MatMulLaunch>, Element, kSide>(
      OwnProduct(launch), static_cast<int>(BlockIndex().y), static_cast<int>(BlockIndex().x));
}

GridSize GridOf(const HeadMatMulLaunch& launch, int rows, int columns) {
  return {MatMulTiles(launch.n, columns), MatMulTiles(launch.rows, rows),
          static_cast<unsigned>(launch.heads)};
}

template <class Element, int kRows>
void LaunchRows(const HeadMatMulLaunch& launch, Stream stream) {
  using Shape = RowsShape<kRows, kHeadTiles>;
  Launch(HeadRowsKernel<Element, kRows>, GridOf(launch, kRows, Shape::kColumns), kRowsThreads,
         Shape::kBytes, stream, launch);
}

template <class Element>
void Dispatch(const HeadMatMulLaunch& launch, Stream stream) {
  if (launch.rows <= 8) return LaunchRows<Element, 8>(launch, stream);
  if (launch.rows <= kFewRows) return LaunchRows<Element, kFewRows>(launch, stream);
  LaunchTiles<kSide>(HeadTileKernel<Element>, GridOf(launch, kSide, kSide), stream, launch);
}

}  // namespace

void LaunchHeadMatMul(const HeadMatMulLaunch& launch, DType dtype, Stream stream) {
  if (launch.rows == 0) return;
  if (dtype == DType::kF16) {
    Dispatch<Half>(launch, stream);
  } else {
    Dispatch<BFloat16>(launch, stream);
  }
}

}  // namespace baton::backend::cuda
