#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/kernels/matmul_tile.cuh"

namespace baton::backend::cuda {
namespace {

// Columns of blocks, eight rows of them at a time: blocks that run together share rows of x and W
// in L2.
BATON_DEVICE void PlaceBlock(int rows, int columns, int& row, int& column) {
  constexpr int kTogether = 8;
  const int index = static_cast<int>(BlockIndex().x);
  const int first = index / (kTogether * columns) * kTogether;
  const int together = Least(kTogether, rows - first);
  row = first + (index - first * columns) % together;
  column = (index - first * columns) / together;
}

// The block's part of Result, whose blocks PlaceBlock places.
template <class Result, class Element, int kSide>
BATON_DEVICE void MultiplyPlaced(const typename Result::Arguments& launch) {
  constexpr int kColumns = kSide / Result::kMatrices;
  int block_row, block_column;
  PlaceBlock((launch.rows + kSide - 1) / kSide, (Result::Columns(launch) + kColumns - 1) / kColumns,
             block_row, block_column);
  MultiplyTile<Result, Element, kSide>(launch, block_row, block_column);
}

template <class Element, int kSide>
BATON_KERNEL(TileShape<kSide>::kThreads)
MatMulTileKernel(MatMulLaunch launch) {
  AwaitPrevious();
  MultiplyPlaced<Product<MatMulLaunch>, Element, kSide>(launch);
}

template <class Element, int kSide>
BATON_KERNEL(TileShape<kSide>::kThreads)
MatMulGatedTileKernel(MatMulGatedLaunch launch) {
  AwaitPrevious();
  MultiplyPlaced<GatedProduct<MatMulGatedLaunch>, Element, kSide>(launch);
}

template <class Element, int kSide>
void LaunchTile(const MatMulLaunch& launch, Stream stream) {
  LaunchTiles<kSide>(MatMulTileKernel<Element, kSide>,
                     {MatMulTiles(launch.rows, kSide) * MatMulTiles(launch.n, kSide), 1, 1}, stream,
                     launch);
}

template <class Element, int kSide>
void LaunchTile(const MatMulGatedLaunch& launch, Stream stream) {
  LaunchTiles<kSide>(MatMulGatedTileKernel<Element, kSide>,
                     {MatMulTiles(launch.rows, kSide) * MatMulTiles(2 * launch.cols, kSide), 1, 1},
                     stream, launch);
}

template <class AnyLaunch>
void Dispatch(const AnyLaunch& launch, DType dtype, MatMulShape shape, Stream stream) {
  const auto of_side = [&](auto element) {
    using Element = decltype(element);
    if (shape == MatMulShape::kSmallTile) {
      LaunchTile<Element, 64>(launch, stream);
    } else {
      LaunchTile<Element, 128>(launch, stream);
    }
  };
  if (dtype == DType::kF16) {
    of_side(Half{});
  } else {
    of_side(BFloat16{});
  }
}

}  // namespace

void LaunchMatMulTile(const MatMulLaunch& launch, DType dtype, MatMulShape shape, Stream stream) {
  Dispatch(launch, dtype, shape, stream);
}

void LaunchMatMulTile(const MatMulGatedLaunch& launch, DType dtype, MatMulShape shape,
                      Stream stream) {
  Dispatch(launch, dtype, shape, stream);
}

}  // namespace baton::backend::cuda
