// Matrix products by a library's kernels (cuBLASLt).
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCTS_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCTS_H_

#include <cstddef>

#include "absl/types/span.h"
#include "common/backend/cuda/kernels/matmul.h"

namespace baton::backend::cuda {

// A product that later steps will need, with least_rows to launch.rows rows.
struct ProductUse {
  MatMulLaunch launch;
  int least_rows = 1;
};

// Thread: one.
class Products {
 public:
  virtual ~Products() = default;
  // Its workspace on the device, set before the first product.
  virtual size_t WorkspaceBytes() const = 0;
  virtual void SetWorkspace(void* device) = 0;
  // Measures which kernel computes each product fastest; takes seconds. Called once, before the
  // first MatMul. Reads the operands and overwrites the results. Pass the weights of every layer:
  // the matrices of one (n, k) together exceed the L2 cache, so each is timed cold, as in a step.
  virtual void Tune(absl::Span<const ProductUse> uses, DType dtype, Stream stream) {}
  // Returns true if it enqueued the product; false, enqueuing nothing, if Baton's kernels are
  // faster or the only ones. Neither measures nor waits: the stream may be under capture.
  virtual bool MatMul(const MatMulLaunch& launch, DType dtype, Stream stream) = 0;
};

// The workspace of cuBLASLt: the size that NVIDIA recommends for Hopper, enough for older GPUs.
inline constexpr size_t kCublasWorkspaceBytes = size_t{32} << 20;

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCTS_H_
