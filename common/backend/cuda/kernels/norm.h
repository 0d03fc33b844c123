// RMS norm of rows (Zhang and Sennrich, arXiv 1910.07467), the residual stream in f32; the addition
// to it is fused in as in vLLM's and FlashInfer's fused_add_rmsnorm, to read and write it once, and
// so is a norm of what is added (the post-norms of Gemma 2, OLMo 2).
//
// One block for each row; each thread takes eight consecutive elements ("a unit") at a time, held
// in registers between the sum and the product where the row has at most kHeldUnits a thread. Unit
// u belongs to thread u % threads, and the number of threads depends on the width alone, so the
// order of the sum does. normed_rows.cuh sums in the same order.
//
// Bytes a row: 4 cols read, and cols elements of out written; with a delta 8 cols read and 4 cols
// written besides. The weights stay in the cache.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_NORM_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_NORM_H_

#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// Pointers are multiples of 16 bytes, strides (in elements) of 8. rms(y) is the root of the mean of
// y² + eps. With a delta, x becomes x + delta * delta_scale or, with a delta_weight, x + y / rms(y)
// * delta_weight for y = delta * delta_scale.
struct NormLaunch {
  float* x;  // [rows, cols]; without a delta it stays
  int64_t x_stride;
  const float* delta;  // [rows, cols], or null
  int64_t delta_stride;
  float delta_scale = 1;
  const float* delta_weight = nullptr;  // [cols], or null
  const float* weight;                  // [cols], or null
  void* out;  // [rows, cols]: x / rms(x) * weight, or x; f32 may be x itself, else apart from it
  int64_t out_stride;
  int cols;  // a multiple of 8
  float eps;
  bool writes_x = false;  // LaunchNorm sets it
};

void LaunchNorm(const NormLaunch& launch, DType out_dtype, int rows, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_NORM_H_
