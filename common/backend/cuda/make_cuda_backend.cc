#include <cstdlib>
#include <memory>
#include <utility>

#include "common/backend/cuda/cuda_backend.h"
#include "common/backend/cuda/products/cublas_products.h"
#include "common/base/status_macros.h"

namespace baton::backend {

absl::StatusOr<int> CudaDeviceCount() { return cuda::DeviceCount(); }

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(const BackendOptions& options, int index) {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<cuda::Runtime> runtime, cuda::OpenDevice(index));
  std::unique_ptr<cuda::Products> products;
  if (!options.deterministic) {
    BATON_ASSIGN_OR_RETURN(products, cuda::MakeCublasProducts(runtime->properties(), index,
                                                              options.cuda.cublas_algorithms));
  }
  cuda::NcclLibrary* nccl = nullptr;
  if (options.cuda.device_links) {
    BATON_ASSIGN_OR_RETURN(nccl, cuda::LoadNccl());
  }
  return cuda::MakeBackendOn(std::move(runtime), std::move(products), options, nccl);
}

}  // namespace baton::backend
