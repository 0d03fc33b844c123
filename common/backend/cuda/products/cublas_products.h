// Products by cuBLASLt.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUBLAS_PRODUCTS_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUBLAS_PRODUCTS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/backend/cuda/products/product_library.h"
#include "common/backend/cuda/products/products.h"
#include "common/backend/cuda/runtime/runtime.h"

namespace baton::backend::cuda {

// On the current device, with a workspace of kCublasWorkspaceBytes: fp16 or bf16 inputs, f32
// accumulation and output. FAILED_PRECONDITION (CUBLAS) if the library does not start.
absl::StatusOr<std::unique_ptr<ProductLibrary>> MakeCublas();

// MeasuredProducts of it and Baton's kernels; the last bits of a row may depend on the number of
// rows. index: of the device, which is current. choices_file: the file of measured choices; empty:
// none.
absl::StatusOr<std::unique_ptr<Products>> MakeCublasProducts(const DeviceProperties& device,
                                                             int index,
                                                             const std::string& choices_file);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_CUBLAS_PRODUCTS_H_
