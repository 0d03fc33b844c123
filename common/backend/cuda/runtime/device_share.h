// Chooses the data type and the memory that a worker uses on a GPU. Pure host code: needs no GPU.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_DEVICE_SHARE_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_DEVICE_SHARE_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/backend/backend_options.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// Returns the type to compute in. INVALID_ARGUMENT (BAD_OPTION) if a device of this compute
// capability (75 is 7.5) has no matrix multiply in the requested type.
absl::StatusOr<DType> ChooseDType(BackendOptions::Compute compute, int compute_capability);

// Device memory reserved for CUDA, which loads kernels lazily, at their first launch.
inline constexpr size_t kReservedBytes = size_t{256} << 20;

// Reserved besides with CudaOptions::device_links: the links' staging, and what NCCL takes for
// buffers, which is an estimate.
inline constexpr size_t kLinkBytes = size_t{512} << 20;

// Returns the size of the arena:
//   min(gpu_memory_utilization * device_bytes, free_bytes - reserved_bytes)
// rounded down to Arena::kAlignment; 0 if the difference is not positive. What other processes use
// is not taken off the share: workers of one GPU may start in any order.
size_t ArenaBytes(size_t device_bytes, size_t free_bytes, size_t reserved_bytes,
                  double gpu_memory_utilization);

struct DeviceShare {
  DType dtype = DType::kF16;
  size_t arena_bytes = 0;
};
// Returns the data type and the arena size for `device`. Fails as ChooseDType does, and with
// RESOURCE_EXHAUSTED (DEVICE_MEMORY) if the arena would be empty.
absl::StatusOr<DeviceShare> ShareOf(const DeviceProperties& device, const BackendOptions& options);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_DEVICE_SHARE_H_
