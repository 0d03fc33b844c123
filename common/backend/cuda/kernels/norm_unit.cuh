// The arithmetic of an RMS norm, eight elements at a time, of all kernels that norm. See norm.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_NORM_UNIT_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_NORM_UNIT_CUH_

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// A thread sums the squares of every kMostNormThreads-th unit, or of one if there are fewer; then a
// warp its threads' sums, then the warps' sums are added in order.
inline constexpr int kMostNormThreads = 512;

BATON_DEVICE float AddSquares(const float (&x)[kUnitElements], float sum) {
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) sum = Fma(x[i], x[i], sum);
  return sum;
}

// 1 / rms of a row, from the sum of its squares.
BATON_DEVICE float InverseRms(float squares, int cols, float eps) {
  const float mean = Divide(squares, static_cast<float>(cols));
  return Divide(1.0f, SquareRoot(Add(mean, eps)));
}

// y / rms(y) * weight, of a unit. scale: 1 / rms(y).
BATON_DEVICE void Normalize(const float (&weight)[kUnitElements], float scale,
                            float (&y)[kUnitElements]) {
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) y[i] = Mul(Mul(y[i], scale), weight[i]);
}
// weight: of the row.
BATON_DEVICE void Normalize(const float* weight, int unit, float scale, float (&y)[kUnitElements]) {
  float w[kUnitElements];
  LoadUnit(weight + unit * kUnitElements, w);
  Normalize(w, scale, y);
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_NORM_UNIT_CUH_
