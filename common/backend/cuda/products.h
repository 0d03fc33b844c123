// Matrix products by somebody else's kernels.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "common/backend/cuda/kernels/matmul.h"

namespace baton::backend::cuda {

// Thread: one.
class Products {
 public:
  virtual ~Products() = default;
  // Device memory that it works in; handed over before the first product.
  virtual size_t WorkspaceBytes() const = 0;
  virtual void SetWorkspace(void* device) = 0;
  // False if there is no algorithm for such a product: nothing was enqueued.
  virtual bool MatMul(const MatMulLaunch& launch, DType dtype, Stream stream) = 0;
};

// cuBLASLt: fp16 or bf16 in, f32 accumulated and out. One algorithm for each (rows rounded up to a
// bucket, n, k), the first that its heuristic names, or for the very rows where that fails; so the
// last bits of a row may depend on how many rows there are. FAILED_PRECONDITION (CUBLAS) if the
// library does not start.
absl::StatusOr<std::unique_ptr<Products>> MakeCublasProducts();

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_H_
