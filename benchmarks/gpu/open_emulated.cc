#include "benchmarks/gpu/open_device.h"
#include "common/backend/cuda/cuda_backend.h"

namespace baton::gpu_bench {
namespace {

constexpr int kCapability = 80;
constexpr size_t kMemoryBytes = size_t{64} << 20;

}  // namespace

absl::StatusOr<OpenedDevice> OpenDevice() {
  return OpenedDevice{backend::cuda::MakeEmulatedRuntime(kCapability, kMemoryBytes), nullptr};
}

absl::StatusOr<std::unique_ptr<backend::Backend>> MakeEngineBackend(
    const backend::BackendOptions& options) {
  return backend::cuda::MakeBackendOn(backend::cuda::MakeEmulatedRuntime(kCapability, kMemoryBytes),
                                      nullptr, options);
}

bool IsEmulated() { return true; }

}  // namespace baton::gpu_bench
