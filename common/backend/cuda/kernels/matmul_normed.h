// Products of few rows, whose kernels also norm their input. In a decode step of a small model a
// separate norm kernel takes longer to begin and to end than to compute. Each block norms all rows,
// so these kernels take few and short rows: more of x would take the blocks as long to read from L2
// as the separate kernel takes. The results have the bits of LaunchNorm, then LaunchMatMul or
// LaunchMatMulGated; quantized_normed.h has the same for weights of few bits.
//
// Bytes: those of the product with 4 k floats a row and block in place of 16-bit rows, from L2.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_NORMED_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_NORMED_H_

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// x of the product: rows of x / rms(x) * weight, rounded to the product's type.
struct NormedInput {
  const float* x;  // [rows, k], a multiple of 16 bytes as the stride
  int64_t x_stride;
  const float* weight;  // [k]
  float eps;
};

// Parts of a row: what a warp has at once, eight elements a lane.
inline constexpr int kNormPart = 8 * kWarpLanes;
BATON_INDEX_MAP int NormParts(int k) { return (k + kNormPart - 1) / kNormPart; }
// Those of all rows that a block norms: two a warp.
inline constexpr int kMostNormParts = 16;
// Elements of all rows: 16 KiB, which each of 264 blocks of an H100 reads from L2 in less than a
// microsecond together.
inline constexpr int kMostNormedElements = 4096;

// Whether the products here take such an input.
inline bool NormsInProduct(int rows, int k) {
  return rows <= 8 && int64_t{rows} * k <= kMostNormedElements &&
         rows * NormParts(k) <= kMostNormParts;
}

// x is ignored. REQUIRES, of both: NormsInProduct; added_scale is 0.
struct NormedMatMulLaunch : MatMulLaunch {
  NormedInput input;
};
struct NormedMatMulGatedLaunch : MatMulGatedLaunch {
  NormedInput input;
};
void LaunchNormedMatMul(const NormedMatMulLaunch& launch, DType dtype, Stream stream);
void LaunchNormedMatMulGated(const NormedMatMulGatedLaunch& launch, DType dtype, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_MATMUL_NORMED_H_
