// What a block of a product of experts multiplies: the rows of one tile with its expert's matrix.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_EXPERT_TILE_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_EXPERT_TILE_CUH_

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/experts.h"
#include "common/backend/cuda/kernels/matmul_core.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// W: const void* or QuantizedView. Rows are those of the tile.
template <class W>
struct TileOperands {
  const void* x;
  int64_t x_stride;
  const int32_t* x_rows;  // null: rows of x in order
  W w;
  const float* bias;
  int rows;  // 0: no tile
  int n;
  int k;

  // For all threads of a block, behind AwaitPrevious.
  BATON_DEVICE explicit TileOperands(const ExpertOperands& all)
      : TileOperands(all, LoadGlobal(all.tiles + BlockIndex().y)) {}

 private:
  static BATON_DEVICE void Set(const ExpertOperands&, const ExpertMatrix& matrix, const void*& w) {
    w = matrix.w;
  }
  static BATON_DEVICE void Set(const ExpertOperands& all, const ExpertMatrix& matrix,
                               QuantizedView& w) {
    w = all.w;
    w.values = matrix.w;
    w.groups = matrix.groups;
  }
  BATON_DEVICE TileOperands(const ExpertOperands& all, const ExpertTile& tile)
      : x(all.x_rows != nullptr ? all.x : MatrixRow(all.x, tile.first, all.x_stride)),
        x_stride(all.x_stride),
        x_rows(all.x_rows != nullptr ? all.x_rows + tile.first : nullptr),
        rows(tile.count),
        n(all.w.n),
        k(all.w.k) {
    const ExpertMatrix& matrix = LoadGlobal(all.matrices + tile.expert);
    Set(all, matrix, w);
    bias = matrix.bias;
  }
};

template <class W>
struct TileProduct : TileOperands<W> {
  float* out;
  int64_t out_stride;
  const int32_t* out_rows;
  BATON_DEVICE explicit TileProduct(const ExpertMatMulLaunch& launch)
      : TileOperands<W>(launch.operands),
        out(launch.out),
        out_stride(launch.out_stride),
        out_rows(launch.out_rows + LoadGlobal(launch.operands.tiles + BlockIndex().y).first) {}
};

template <class W>
struct TileGated : TileOperands<W> {
  void* out;
  int64_t out_stride;
  int cols;
  Gating gating;
  BATON_DEVICE explicit TileGated(const ExpertMatMulGatedLaunch& launch)
      : TileOperands<W>(launch.operands),
        out(MatrixRow(launch.out, LoadGlobal(launch.operands.tiles + BlockIndex().y).first,
                      launch.out_stride)),
        out_stride(launch.out_stride),
        cols(launch.operands.w.n / 2),
        gating(launch.gating) {}
};

template <class W>
BATON_DEVICE const uint16_t* RowOfTile(const TileOperands<W>& tile, int row) {
  const int from = tile.x_rows == nullptr ? row : LoadGlobal(tile.x_rows + row);
  return MatrixRow(tile.x, from, tile.x_stride);
}
template <class W>
BATON_DEVICE const uint16_t* XRow(const TileProduct<W>& tile, int row) {
  return RowOfTile(tile, row);
}
template <class W>
BATON_DEVICE const uint16_t* XRow(const TileGated<W>& tile, int row) {
  return RowOfTile(tile, row);
}
template <class W>
BATON_DEVICE float* OutRow(const TileProduct<W>& tile, int row) {
  return tile.out + LoadGlobal(tile.out_rows + row) * tile.out_stride;
}
template <class W>
BATON_DEVICE float GatedSum(const TileGated<W>& tile, int column, float gate, float up) {
  return Gated(Biased(tile.bias, column, gate), Biased(tile.bias, tile.cols + column, up),
               tile.gating);
}

// Grids: blocks of columns by tiles.
inline GridSize ExpertGrid(const ExpertOperands& operands, int columns, int block_columns) {
  return {MatMulTiles(columns, block_columns), static_cast<unsigned>(operands.tile_count), 1};
}

// experts_quantized.cu, for bits of 4, 8 and kFp4.
void LaunchQuantizedExperts(const ExpertMatMulLaunch& launch, DType dtype, Stream stream);
void LaunchQuantizedExperts(const ExpertMatMulGatedLaunch& launch, DType dtype, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_EXPERT_TILE_CUH_
