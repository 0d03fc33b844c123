// What a worker asks of a GPU, known before it is there: host arithmetic.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_DEVICE_SHARE_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_DEVICE_SHARE_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/backend/backend_options.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// The type to compute in, if a device of this compute capability (75 is 7.5) multiplies what was
// asked for; else INVALID_ARGUMENT (BAD_OPTION).
absl::StatusOr<DType> ChooseDType(BackendOptions::Compute compute, int compute_capability);

// What CUDA takes of a device after the arena: kernels are loaded when they are first launched.
inline constexpr size_t kReservedBytes = size_t{256} << 20;

// The arena: that share of the whole device, less what others use of it, and no more than is free
// but for what is reserved. 0 if that leaves nothing.
size_t ArenaBytes(size_t device_bytes, size_t used_by_others, size_t free_bytes,
                  size_t reserved_bytes, double gpu_memory_utilization);

struct DeviceShare {
  DType dtype = DType::kF16;
  size_t arena_bytes = 0;
};
// Both for a device that is there. Errors as ChooseDType, and RESOURCE_EXHAUSTED (DEVICE_MEMORY) if
// the arena would be empty.
absl::StatusOr<DeviceShare> ShareOf(const DeviceProperties& device, const BackendOptions& options);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_DEVICE_SHARE_H_
