#include <filesystem>
#include <utility>

#include "benchmarks/gpu/open_device.h"
#include "common/backend/cuda/cuda_backend.h"
#include "common/backend/cuda/products/cublas_products.h"
#include "common/base/status_macros.h"

namespace baton::gpu_bench {

absl::StatusOr<OpenedDevice> OpenDevice() {
  OpenedDevice opened;
  BATON_ASSIGN_OR_RETURN(opened.runtime, backend::cuda::OpenDevice(0));
  BATON_ASSIGN_OR_RETURN(opened.products,
                         backend::cuda::MakeCublasProducts(opened.runtime->properties(), 0, ""));
  return opened;
}

absl::StatusOr<std::unique_ptr<backend::Backend>> MakeEngineBackend(
    const backend::BackendOptions& options) {
  backend::BackendOptions fast = options;
  fast.deterministic = false;  // what the peers are compared with
  // So that a model that is loaded again measures nothing.
  fast.cuda.cublas_algorithms =
      (std::filesystem::temp_directory_path() / "baton-gpu-bench-algorithms").string();
  return backend::MakeCudaBackend(fast, 0);
}

bool IsEmulated() { return false; }

}  // namespace baton::gpu_bench
