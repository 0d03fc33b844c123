#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/expert_tile.cuh"
#include "common/backend/cuda/kernels/experts.h"
#include "common/backend/cuda/kernels/matmul_rows.cuh"
#include "common/backend/cuda/kernels/matmul_tile.cuh"

namespace baton::backend::cuda {
namespace {

// Tiles of columns that a block takes. A tile of rows for each expert makes blocks enough.
constexpr int kWideTiles = 2;

template <class Element, int kRows>
BATON_KERNEL_RESIDENT(kRowsThreads, kResidentRows)
ExpertRowsKernel(ExpertMatMulLaunch launch) {
  AwaitPrevious();
  using Shape = RowsShape<kRows, kWideTiles>;
  const TileProduct<const void*> tile(launch);
  if (tile.rows == 0) return;  // whole blocks agree
  const int first_column = static_cast<int>(BlockIndex().x) * Shape::kColumns;
  const uint16_t* w[kWideTiles];
  BATON_UNROLL for (int i = 0; i < kWideTiles; ++i) {
    const int column = first_column + i * kColumnTile + GroupOf(Lane());
    w[i] = MatrixRow(tile.w, Least(column, tile.n - 1), tile.k);
  }
  StoreSums<kRows, Shape::kColumns>(tile, 0, first_column,
                                    MultiplyRows<Element, kRows>(tile, 0, w));
}

template <class Element, int kRows>
BATON_KERNEL_RESIDENT(kRowsThreads, kResidentRows)
ExpertGatedRowsKernel(ExpertMatMulGatedLaunch launch) {
  AwaitPrevious();
  const TileGated<const void*> tile(launch);
  if (tile.rows == 0) return;  // whole blocks agree
  const int first_column = static_cast<int>(BlockIndex().x) * kColumnTile;
  const int column = first_column + GroupOf(Lane());
  const uint16_t* const w[2] = {MatrixRow(tile.w, column, tile.k),
                                MatrixRow(tile.w, tile.cols + column, tile.k)};
  StoreGatedSums<Element, kRows>(tile, 0, first_column, MultiplyRows<Element, kRows>(tile, 0, w));
}

constexpr int kSide = kMostTileRows;

template <class Element>
BATON_KERNEL(TileShape<kSide>::kThreads)
ExpertTileKernel(ExpertMatMulLaunch launch) {
  AwaitPrevious();
  const TileProduct<const void*> tile(launch);
  if (tile.rows == 0) return;  // whole blocks agree
  MultiplyTile<Product<TileProduct<const void*>>, Element, kSide>(tile, 0,
                                                                  static_cast<int>(BlockIndex().x));
}

template <class Element>
BATON_KERNEL(TileShape<kSide>::kThreads)
ExpertGatedTileKernel(ExpertMatMulGatedLaunch launch) {
  AwaitPrevious();
  const TileGated<const void*> tile(launch);
  if (tile.rows == 0) return;  // whole blocks agree
  MultiplyTile<GatedProduct<TileGated<const void*>>, Element, kSide>(
      tile, 0, static_cast<int>(BlockIndex().x));
}

template <class Element, int kRows>
void LaunchRows(const ExpertMatMulLaunch& launch, Stream stream) {
  Launch(ExpertRowsKernel<Element, kRows>,
         ExpertGrid(launch.operands, launch.operands.w.n, RowsShape<kRows, kWideTiles>::kColumns),
         kRowsThreads, RowsShape<kRows, kWideTiles>::kBytes, stream, launch);
}
template <class Element, int kRows>
void LaunchRows(const ExpertMatMulGatedLaunch& launch, Stream stream) {
  Launch(ExpertGatedRowsKernel<Element, kRows>,
         ExpertGrid(launch.operands, launch.operands.w.n / 2, kColumnTile), kRowsThreads,
         RowsShape<kRows, 2>::kBytes, stream, launch);
}
template <class Element>
void LaunchTile(const ExpertMatMulLaunch& launch, Stream stream) {
  LaunchTiles<kSide>(ExpertTileKernel<Element>,
                     ExpertGrid(launch.operands, launch.operands.w.n, kSide), stream, launch);
}
template <class Element>
void LaunchTile(const ExpertMatMulGatedLaunch& launch, Stream stream) {
  LaunchTiles<kSide>(ExpertGatedTileKernel<Element>,
                     ExpertGrid(launch.operands, launch.operands.w.n, kSide), stream, launch);
}

template <class Element, class AnyLaunch>
void Dispatch(const AnyLaunch& launch, Stream stream) {
  switch (launch.operands.tile_rows) {
    case kLeastTileRows:
      return LaunchRows<Element, kLeastTileRows>(launch, stream);
    case kMiddleTileRows:
      return LaunchRows<Element, kMiddleTileRows>(launch, stream);
    default:
      return LaunchTile<Element>(launch, stream);
  }
}

template <class AnyLaunch>
void DispatchAll(const AnyLaunch& launch, DType dtype, Stream stream) {
  if (launch.operands.tile_count == 0) return;
  if (launch.operands.bits != 16) return LaunchQuantizedExperts(launch, dtype, stream);
  if (dtype == DType::kF16) {
    Dispatch<Half>(launch, stream);
  } else {
    Dispatch<BFloat16>(launch, stream);
  }
}

}  // namespace

void LaunchExpertMatMul(const ExpertMatMulLaunch& launch, DType dtype, Stream stream) {
  DispatchAll(launch, dtype, stream);
}

void LaunchExpertMatMulGated(const ExpertMatMulGatedLaunch& launch, DType dtype, Stream stream) {
  DispatchAll(launch, dtype, stream);
}

}  // namespace baton::backend::cuda
