// matmul_normed.h for weights of 4 and 8 bits.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_NORMED_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_NORMED_H_

#include "common/backend/cuda/kernels/matmul_normed.h"
#include "common/backend/cuda/kernels/quantized.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// The input's order of columns is W's. REQUIRES, of both: NormsInProduct.
struct QuantizedNormedLaunch {
  NormedInput input;
  QuantizedView w;
  const float* bias;  // [n] or null
  float* out;         // [rows, n]
  int64_t out_stride;
  int rows;
};
struct QuantizedNormedGatedLaunch {
  NormedInput input;
  QuantizedView w;  // gate first; n a multiple of 16
  void* out;        // [rows, n / 2], 16-bit
  int64_t out_stride;
  int rows;
  Gating gating = {};
};

// The bits of LaunchNorm, then LaunchQuantizedMatMul or LaunchQuantizedMatMulGated.
void LaunchQuantizedNormed(const QuantizedNormedLaunch& launch, int bits, DType dtype,
                           Stream stream);
void LaunchQuantizedNormedGated(const QuantizedNormedGatedLaunch& launch, int bits, DType dtype,
                                Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_NORMED_H_
