// The matrix products of backend.h, by Baton's kernels or a library.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCT_OPERATIONS_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCT_OPERATIONS_H_

#include <cstdint>

#include "common/backend/backend.h"
#include "common/backend/cuda/matrices/quantized_matrix.h"
#include "common/backend/cuda/products/products.h"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// What products need besides their operands.
struct ProductMeans {
  DType dtype;         // the activations'
  Products* products;  // of a library; null: the deterministic ones
  const QuantizedWorkspaces& workspaces;
  Stream stream;
};

void EnqueueMatMul(const Tensor& x, const PackedMatrix& weight, const Buffer* bias,
                   const Tensor& out, const ProductMeans& means);

// Norm and product in one kernel. False, enqueuing nothing, if no kernel does such: the norm adds a
// delta or has no weight, the rows are many or long, or a library multiplies.
bool EnqueueNormMatMul(const NormArgs& norm, const PackedMatrix& weight, const Buffer* bias,
                       const Tensor& out, const ProductMeans& means);
bool EnqueueNormMatMulGated(const NormArgs& norm, const PackedMatrix& gate_up,
                            const GatedArgs& args, const Tensor& out, const ProductMeans& means);

// Backend's adds_products and MatMulAdd, which requires it.
bool AddsProducts(const PackedMatrix& weight, int64_t rows, const ProductMeans& means);
void EnqueueMatMulAdd(const Tensor& x, const PackedMatrix& weight, const Buffer* bias, float scale,
                      const Tensor& residual, const ProductMeans& means);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCT_OPERATIONS_H_
