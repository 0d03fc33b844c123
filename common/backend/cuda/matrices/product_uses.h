// The products of a model's steps, to be measured when it is loaded.
#ifndef BATON_COMMON_BACKEND_CUDA_MATRICES_PRODUCT_USES_H_
#define BATON_COMMON_BACKEND_CUDA_MATRICES_PRODUCT_USES_H_

#include <vector>

#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/matrices/quantized_matrix.h"
#include "common/backend/cuda/products/products.h"
#include "common/backend/cuda/runtime/host_staging.h"

namespace baton::backend::cuda {

// For Products::Tune. Of quantised weights only the 16-bit slices for many rows: few rows need no
// library. Fills all x with random numbers, on the staging's stream.
std::vector<ProductUse> UsesOf(absl::Span<const MatMulUse> products,
                               const QuantizedWorkspaces& workspaces, HostStaging& staging);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_MATRICES_PRODUCT_USES_H_
