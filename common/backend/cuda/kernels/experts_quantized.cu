#include <type_traits>

#include "common/backend/cuda/kernels/expert_tile.cuh"
#include "common/backend/cuda/kernels/quantized.cuh"

namespace baton::backend::cuda {
namespace {

template <class Element, int kBits, int kXTiles>
BATON_KERNEL_RESIDENT(kRowsThreads, Resident(kXTiles))
QuantizedExpertKernel(ExpertMatMulLaunch launch) {
  AwaitPrevious();
  constexpr int kColumns = kParts * kTileRows;
  const TileProduct<QuantizedView> tile(launch);
  if (tile.rows == 0) return;  // whole blocks agree
  const int row_tile = static_cast<int>(BlockIndex().x) * kParts;
  const int row_tiles[kParts] = {row_tile, Least(row_tile + 1, (tile.n - 1) / kTileRows)};
  SumSlices<Element, kBits, kXTiles>(tile, 0, row_tiles);
  for (int output = ThreadIndex(); output < kXTiles * kTileOutputs; output += kRowsThreads) {
    const int row = output / kColumns, column = output % kColumns;
    StoreSum(tile, row, row_tile * kTileRows + column, FoldSlices<kXTiles>(tile.k, row, column));
  }
}

template <class Element, int kBits, int kXTiles>
BATON_KERNEL_RESIDENT(kRowsThreads, Resident(kXTiles))
QuantizedGatedExpertKernel(ExpertMatMulGatedLaunch launch) {
  AwaitPrevious();
  const TileGated<QuantizedView> tile(launch);
  if (tile.rows == 0) return;  // whole blocks agree
  const int row_tile = static_cast<int>(BlockIndex().x);
  const int row_tiles[kParts] = {row_tile, row_tile + tile.cols / kTileRows};
  SumSlices<Element, kBits, kXTiles>(tile, 0, row_tiles);
  StoreGatedSlices<Element, kXTiles>(tile, 0, row_tile * kTileRows);
}

template <class Element, int kBits, int kXTiles>
void LaunchTiles(const ExpertMatMulLaunch& launch, Stream stream) {
  Launch(QuantizedExpertKernel<Element, kBits, kXTiles>,
         ExpertGrid(launch.operands, launch.operands.w.n, kParts * kTileRows), kRowsThreads,
         RowsBytes(kXTiles), stream, launch);
}
template <class Element, int kBits, int kXTiles>
void LaunchTiles(const ExpertMatMulGatedLaunch& launch, Stream stream) {
  Launch(QuantizedGatedExpertKernel<Element, kBits, kXTiles>,
         ExpertGrid(launch.operands, launch.operands.w.n / 2, kTileRows), kRowsThreads,
         RowsBytes(kXTiles), stream, launch);
}

template <class Element, int kBits, class AnyLaunch>
void Dispatch(const AnyLaunch& launch, Stream stream) {
  switch (launch.operands.tile_rows) {
    case kLeastTileRows:
      return LaunchTiles<Element, kBits, kLeastTileRows / kXTile>(launch, stream);
    case kMiddleTileRows:
      return LaunchTiles<Element, kBits, kMiddleTileRows / kXTile>(launch, stream);
    default:
      return LaunchTiles<Element, kBits, kMostTileRows / kXTile>(launch, stream);
  }
}

template <class AnyLaunch>
void DispatchAll(const AnyLaunch& launch, DType dtype, Stream stream) {
  const auto of_type = [&](auto element) {
    using Element = decltype(element);
    switch (launch.operands.bits) {
      case 4:
        return Dispatch<Element, 4>(launch, stream);
      case 8:
        return Dispatch<Element, 8>(launch, stream);
      default:
        return Dispatch<Element, kFp4>(launch, stream);
    }
  };
  if (dtype == DType::kF16) {
    of_type(Half{});
  } else {
    of_type(BFloat16{});
  }
}

}  // namespace

void LaunchQuantizedExperts(const ExpertMatMulLaunch& launch, DType dtype, Stream stream) {
  DispatchAll(launch, dtype, stream);
}

void LaunchQuantizedExperts(const ExpertMatMulGatedLaunch& launch, DType dtype, Stream stream) {
  DispatchAll(launch, dtype, stream);
}

}  // namespace baton::backend::cuda
