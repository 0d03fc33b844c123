// Operations of backend.h that need neither a batch nor a pool, and the checks of operands of all.
#ifndef BATON_COMMON_BACKEND_CUDA_ROW_OPERATIONS_H_
#define BATON_COMMON_BACKEND_CUDA_ROW_OPERATIONS_H_

#include <cstdint>

#include "common/backend/backend.h"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// Rows as kernels take them, which move 16 bytes at a time.
void CheckRows(const Tensor& tensor, int64_t rows, int64_t cols);
float* F32(const Tensor& tensor);
// The first `floats` of a buffer.
const float* F32(const Buffer& buffer, int64_t floats);

void EnqueueNorm(const NormArgs& args, Stream stream);
void EnqueueGate(const Tensor& gate_up, const GatedArgs& args, const Tensor& out, Stream stream);
void EnqueueGateBy(const Tensor& gate, const Tensor& by, GatedActivation activation,
                   const Tensor& out, Stream stream);
void EnqueueScaleLogits(const Tensor& logits, float scale, float cap, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_ROW_OPERATIONS_H_
