// The CUDA backend: NVIDIA GPUs from compute capability 7.5 (T4) on.
//
// Weights, activations and KV are float16 (below 8.0) or bfloat16; products accumulate in float32;
// the residual stream, norms, rotation, softmax and logits are float32. All device memory is one
// arena, allocated with the backend; no step allocates.
//
// Attention, norms and other row-wise kernels give the same bits in every batch. Products do
// with BackendOptions::deterministic, the default; without it the kernel that was measured as the
// fastest for the number of rows multiplies (products/measured_products.h).
#ifndef BATON_COMMON_BACKEND_CUDA_CUDA_BACKEND_H_
#define BATON_COMMON_BACKEND_CUDA_CUDA_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/backend/backend_options.h"
#include "common/backend/cuda/nccl/nccl_library.h"
#include "common/backend/cuda/products/products.h"
#include "common/backend/cuda/runtime/runtime.h"

namespace baton::backend {

// Number of GPUs that CUDA sees; 0 if there is no driver. FAILED_PRECONDITION (DEVICE_UNUSABLE) if
// the driver is too old or fails.
absl::StatusOr<int> CudaDeviceCount();

// INVALID_ARGUMENT (reason BAD_OPTION) for a dtype that the GPU does not multiply; NOT_FOUND
// (NO_DEVICE); FAILED_PRECONDITION (DEVICE_UNUSABLE, CUBLAS, NCCL); RESOURCE_EXHAUSTED
// (DEVICE_MEMORY) if other processes use all of the share of gpu_memory_utilization.
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options, int index);

namespace cuda {

// On a given device. products: null to multiply with the deterministic kernels alone. nccl: for
// links with other devices, which it outlives; null: there are none.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackendOn(std::unique_ptr<Runtime> runtime,
                                                       std::unique_ptr<Products> products,
                                                       const BackendOptions& options,
                                                       NcclLibrary* nccl = nullptr);

}  // namespace cuda
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CUDA_CUDA_BACKEND_H_
