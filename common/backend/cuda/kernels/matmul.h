// x Wᵀ with one order of summation for every number of rows. k is cut into eight slices, by k
// alone; a slice is summed ascending, 16 k's at a time, in one accumulator; the slices' sums are
// added in order. All shapes of block do that, and give the same bits. The default for all
// products; with --no-deterministic, used where it is faster than cuBLASLt (the slices keep the
// memory busy where n is small: split-K) and where cuBLASLt has no algorithm.
//
// - rows: few. A block takes 8, 16 or 32 rows by 8 columns (narrow) or 16 (wide), each warp one
//   slice, W loaded from memory to registers, 16 bytes a lane (FragmentK of index_maps.h), in a
//   ring of chunks. Of gate and up it takes 8 columns of each, whose results it gates. With up to
//   16 rows it takes several such sets of columns, one after the other.
// - tile: many rows. A block takes 128 x 128 or 64 x 64, both operands through shared memory in a
//   ring of stages (multistage pipeline, as CUTLASS describes it). A warp keeps the sums of its
//   slice and those of the slices before in registers. Of gate and up it takes half as many columns
//   of each, so that a lane has what it gates and by what.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_H_

#include "common/backend/cuda/kernels/gating.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

struct MatMulLaunch {
  const void* x;  // [rows, k], 16-bit
  int64_t x_stride;
  const void* w;      // [n, k], 16-bit; k a multiple of 8
  const float* bias;  // [n] or null
  float* out;         // [rows, n]
  int64_t out_stride;
  int rows;
  int n;
  int k;
  // Not 0: the product times this is added to out, as LaunchNorm adds a delta, and takes its place.
  // REQUIRES: at most kAddedRows rows, no shape of many rows.
  float added_scale = 0;
};

inline constexpr int kAddedRows = 16;

// The shape `rows` is used up to this many rows, which share each load of W.
inline constexpr int kFewRows = 32;

// kRows is kWideRows where that leaves no multiprocessor idle, else kNarrowRows; kTile is
// kLargeTile (128 x 128) or kSmallTile, whichever the device's multiprocessors should do sooner.
enum class MatMulShape { kAuto, kRows, kNarrowRows, kWideRows, kTile, kSmallTile, kLargeTile };

// The version of its speed. Raise it with every change that makes it faster or slower: measured
// choices (measured_products.h) of other versions are discarded.
inline constexpr int kMatMulVersion = 4;

// dtype: of x and w, kF16 or kBF16. Reads (rows + n) k 16-bit values and, with an added_scale, rows
// n floats; writes rows n floats.
void LaunchMatMul(const MatMulLaunch& launch, DType dtype, Stream stream,
                  MatMulShape shape = MatMulShape::kAuto);

struct MatMulGatedLaunch {
  const void* x;  // [rows, k], 16-bit
  int64_t x_stride;
  const void* w;  // [2 * cols, k], 16-bit, gate first
  void* out;      // [rows, cols], 16-bit
  int64_t out_stride;
  int rows;
  int cols;  // a multiple of 8, as the strides
  int k;     // a multiple of 8
  Gating gating = {};
};

// out = activation(gate) * up * scale for gate_up = x Wᵀ, the bits that LaunchMatMul and LaunchGate
// (to dtype) leave, and gate_up is not written. Reads (rows + 2 cols) k 16-bit values, writes rows
// cols ones.
void LaunchMatMulGated(const MatMulGatedLaunch& launch, DType dtype, Stream stream,
                       MatMulShape shape = MatMulShape::kAuto);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_H_
