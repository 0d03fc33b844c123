// The device that is timed: the GPU of open_gpu.cc or the emulation of open_emulated.cc, as linked.
#ifndef BATON_BENCHMARKS_GPU_OPEN_DEVICE_H_
#define BATON_BENCHMARKS_GPU_OPEN_DEVICE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/backend/backend_options.h"
#include "common/backend/cuda/products/products.h"
#include "common/backend/cuda/runtime/runtime.h"

namespace baton::gpu_bench {

struct OpenedDevice {
  std::unique_ptr<backend::cuda::Runtime> runtime;
  std::unique_ptr<backend::cuda::Products> products;  // may be null
};
absl::StatusOr<OpenedDevice> OpenDevice();
// The same device for an engine.
absl::StatusOr<std::unique_ptr<backend::Backend>> MakeEngineBackend(
    const backend::BackendOptions& options);
// Not a GPU: figures mean nothing.
bool IsEmulated();

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_OPEN_DEVICE_H_
