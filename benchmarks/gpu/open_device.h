// The device that is timed. Which it is, is a matter of linking: open_gpu.cc or open_emulated.cc.
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
// The same device as an engine takes it.
absl::StatusOr<std::unique_ptr<backend::Backend>> MakeEngineBackend(
    const backend::BackendOptions& options);
// Not a GPU: figures mean nothing.
bool IsEmulated();

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_OPEN_DEVICE_H_
