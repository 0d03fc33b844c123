// What both shapes of block share, so that they sum alike. See matmul.h and index_maps.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_CORE_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_CORE_CUH_

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

inline constexpr int kColumnTile = 8;  // columns of a product

// A block that multiplies few rows has a warp for each slice.
inline constexpr int kRowsThreads = kSlices * kWarpLanes;

// What slices' sums are added to: leaves the first as it is, a zero's sign too.
inline constexpr float kNoSlice = -0.0f;

// The sum of an output's slices, which lie `stride` floats apart in shared memory. Those behind the
// end of k have stored zeros, which are loaded too: all loads are under way at once.
BATON_DEVICE float FoldSlices(int k, const float* first, int stride) {
  const int length = SliceLength(k);
  float sums[kSlices];
  BATON_UNROLL for (int slice = 0; slice < kSlices; ++slice) sums[slice] = first[slice * stride];
  float total = sums[0];
  BATON_UNROLL for (int slice = 1; slice < kSlices; ++slice) {
    total = slice * length < k ? Add(total, sums[slice]) : total;
  }
  return total;
}

BATON_DEVICE const uint16_t* MatrixRow(const void* matrix, int64_t row, int64_t stride) {
  return static_cast<const uint16_t*>(matrix) + row * stride;
}
BATON_DEVICE uint16_t* MatrixRow(void* matrix, int64_t row, int64_t stride) {
  return static_cast<uint16_t*>(matrix) + row * stride;
}

// A row of a product's x, and the row of its result.
template <class Matrices>
BATON_DEVICE const uint16_t* XRow(const Matrices& launch, int row) {
  return MatrixRow(launch.x, row, launch.x_stride);
}
template <class Matrices>
BATON_DEVICE auto* OutRow(const Matrices& launch, int row) {
  return launch.out + row * launch.out_stride;
}

// The operands of two products, of rows g and g + 8 of x. hidden_zero: see HiddenZero.
struct RowsOperand {
  uint32_t a[2][4];
  BATON_DEVICE RowsOperand(const Vec16& low, const Vec16& high, uint32_t hidden_zero) {
    BATON_UNROLL for (int i = 0; i < 8; ++i) {
      a[i / 4][i % 4] = (i % 2 == 0 ? low : high).x[i / 2] | hidden_zero;
    }
  }
  // Keeps operands that were made without a hidden zero in registers.
  BATON_DEVICE void Pin(uint32_t hidden_zero) {
    BATON_UNROLL for (auto& product : a) {
      BATON_UNROLL for (uint32_t& two : product) two = Pinned(two, hidden_zero);
    }
  }
};

// 16 k's of a product of 16 rows with 8 columns: the first or the second of a chunk's two.
template <class Element>
BATON_DEVICE void Multiply(float (&sums)[4], const RowsOperand& rows, const Vec16& w, int product) {
  Element::Mma16(sums, rows.a[product], w.x[product * 2], w.x[product * 2 + 1]);
}
// All 32.
template <class Element>
BATON_DEVICE void Accumulate(float (&sums)[4], const RowsOperand& rows, const Vec16& w) {
  BATON_UNROLL for (int product = 0; product < 2; ++product) {
    Multiply<Element>(sums, rows, w, product);
  }
}

BATON_DEVICE float Biased(const float* bias, int column, float sum) {
  return bias == nullptr ? sum : Add(sum, BitsFloat(Load4(bias + column)));
}
template <class Matrices>
BATON_DEVICE void StoreSum(const Matrices& launch, int row, int column, float sum) {
  if (row >= launch.rows || column >= launch.n) return;
  StoreGlobal(OutRow(launch, row) + column, Biased(launch.bias, column, sum));
}

// A column of the result of gate and up.
template <class Matrices>
BATON_DEVICE float GatedSum(const Matrices& launch, int column, float gate, float up) {
  return Gated(gate, up, launch.gating);
}

// Gates and stores what a block of kRowsThreads threads has of a tile of gate's columns, from
// first_column on, and the same of up's: kRows rows. fold(row, column): the sum of an output, of 16
// columns, gate's first.
template <class Element, int kRows, class Matrices, class Fold>
BATON_DEVICE void StoreGated(const Matrices& launch, int first_row, int first_column,
                             const Fold& fold) {
  constexpr int kColumns = 2 * kColumnTile;
  static_assert(kColumns == kWarpLanes / 2 && kRows * kColumns % kWarpLanes == 0);
  for (int output = ThreadIndex(); output < kRows * kColumns; output += kRowsThreads) {
    const int row = output / kColumns, column = output % kColumns % kColumnTile;
    const bool up = output % kColumns >= kColumnTile;
    const float total = fold(row, output % kColumns);
    const float other = ShuffleXor(total, kColumnTile);
    const float gated =
        GatedSum(launch, first_column + column, up ? other : total, up ? total : other);
    const float next = ShuffleXor(gated, 1);
    // A lane stores two columns by one access. The lanes of up have given theirs away.
    if (up || column % 2 == 1 || first_row + row >= launch.rows) continue;
    uint16_t* const out =
        MatrixRow(launch.out, first_row + row, launch.out_stride) + first_column + column;
    StoreGlobal(reinterpret_cast<uint32_t*>(out), Element::Pack(gated, next));
  }
}

// matmul_tile.cu. shape: kSmallTile or kLargeTile.
void LaunchMatMulTile(const MatMulLaunch& launch, DType dtype, MatMulShape shape, Stream stream);
void LaunchMatMulTile(const MatMulGatedLaunch& launch, DType dtype, MatMulShape shape,
                      Stream stream);

BATON_HOST_DEVICE unsigned MatMulTiles(int size, int tile) {
  return static_cast<unsigned>((size + tile - 1) / tile);
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_CORE_CUH_
