// The product with gate and up, fused with what gates it.
#ifndef BATON_COMMON_BACKEND_CUDA_MATRICES_GATED_PRODUCT_H_
#define BATON_COMMON_BACKEND_CUDA_MATRICES_GATED_PRODUCT_H_

#include "common/backend/backend.h"
#include "common/backend/cuda/kernels/gating.h"
#include "common/backend/cuda/matrices/quantized_matrix.h"

namespace baton::backend::cuda {

Gating GatingOf(const GatedArgs& args);

// out [rows, f] = Gate of x [rows, k] times gate_up [2 f, k], a CudaMatrix or a
// CudaQuantizedMatrix; f is a multiple of 8. False, enqueuing nothing, if out is not `dtype`, the
// activation type, a library multiplies so many rows (has_products), or there is no gate: what one
// pass over the product costs is little beside its matrix of f rows, and no kernel is fused.
bool MultiplyGated(const Tensor& x, const PackedMatrix& gate_up, const GatedArgs& args,
                   const Tensor& out, DType dtype, bool has_products,
                   const QuantizedWorkspaces& workspaces, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_MATRICES_GATED_PRODUCT_H_
