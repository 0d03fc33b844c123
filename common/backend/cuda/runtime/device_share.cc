#include "common/backend/cuda/runtime/device_share.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/runtime/arena.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kT4Bytes = size_t{14'930} << 20;

}  // namespace

absl::StatusOr<DType> ChooseDType(BackendOptions::Compute compute, int compute_capability) {
  const bool has_bf16 = compute_capability >= 80;
  switch (compute) {
    case BackendOptions::Compute::kAuto:
      return has_bf16 ? DType::kBF16 : DType::kF16;
    case BackendOptions::Compute::kF16:
      return DType::kF16;
    case BackendOptions::Compute::kBF16:
      if (has_bf16) return DType::kBF16;
      return InvalidField(
          "BAD_OPTION", "--dtype",
          absl::StrCat("bfloat16 given, but the GPU, or what this program was compiled "
                       "for, has compute capability ",
                       compute_capability / 10, ".", compute_capability % 10,
                       ", expected 8.0 or newer, or float16"));
    case BackendOptions::Compute::kF32:
      break;
  }
  return InvalidField("BAD_OPTION", "--dtype",
                      "float32 given, expected float16 or bfloat16 on a GPU");
}

size_t ArenaBytes(size_t device_bytes, size_t free_bytes, size_t reserved_bytes,
                  double gpu_memory_utilization) {
  const auto share =
      static_cast<size_t>(gpu_memory_utilization * static_cast<double>(device_bytes));
  if (free_bytes <= reserved_bytes) return 0;
  return std::min(share, free_bytes - reserved_bytes) / Arena::kAlignment * Arena::kAlignment;
}

absl::StatusOr<DeviceShare> ShareOf(const DeviceProperties& device, const BackendOptions& options) {
  const bool t4 = options.cuda.as_t4;
  const int capability = t4 ? std::min(75, device.kernel_capability) : device.kernel_capability;
  const size_t total = t4 ? std::min(kT4Bytes, device.total_bytes) : device.total_bytes;
  DeviceShare share;
  BATON_ASSIGN_OR_RETURN(share.dtype, ChooseDType(options.compute, capability));
  const size_t reserved = device.reserved_bytes + (options.cuda.device_links ? kLinkBytes : 0);
  share.arena_bytes =
      ArenaBytes(total, device.free_bytes, reserved, options.gpu_memory_utilization);
  if (share.arena_bytes == 0) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "DEVICE_MEMORY",
        absl::StrCat(device.name, ": ", device.free_bytes >> 20, " of ", device.total_bytes >> 20,
                     " MiB are free, expected more than the ", reserved >> 20,
                     " MiB that CUDA's kernels", options.cuda.device_links ? " and NCCL" : "",
                     " are left, and --gpu-memory-utilization ", options.gpu_memory_utilization,
                     " of ", total >> 20, " MiB to be more than nothing"));
  }
  return share;
}

}  // namespace baton::backend::cuda
