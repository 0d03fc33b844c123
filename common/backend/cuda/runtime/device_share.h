// The type and the memory that a worker takes of a GPU: host arithmetic, also without the GPU.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_DEVICE_SHARE_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_DEVICE_SHARE_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/backend/backend_options.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// The type to compute in. INVALID_ARGUMENT (BAD_OPTION) if a device of this compute capability (75
// is 7.5) does not multiply the requested one.
absl::StatusOr<DType> ChooseDType(BackendOptions::Compute compute, int compute_capability);

// Device memory left to CUDA, which loads kernels when they are first launched.
inline constexpr size_t kReservedBytes = size_t{256} << 20;

// The size of the arena: the share of the whole device less what other processes use, and at most
// the free memory less the reserved. 0 if nothing is left.
size_t ArenaBytes(size_t device_bytes, size_t used_by_others, size_t free_bytes,
                  size_t reserved_bytes, double gpu_memory_utilization);

struct DeviceShare {
  DType dtype = DType::kF16;
  size_t arena_bytes = 0;
};
// Both of a device. Errors as ChooseDType, and RESOURCE_EXHAUSTED (DEVICE_MEMORY) if
// the arena would be empty.
absl::StatusOr<DeviceShare> ShareOf(const DeviceProperties& device, const BackendOptions& options);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_DEVICE_SHARE_H_
