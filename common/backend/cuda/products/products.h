// Matrix products by somebody else's kernels.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCTS_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCTS_H_

#include <cstddef>

#include "absl/types/span.h"
#include "common/backend/cuda/kernels/matmul.h"

namespace baton::backend::cuda {

// A product that steps will ask for, with least_rows to launch.rows rows.
struct ProductUse {
  MatMulLaunch launch;
  int least_rows = 1;
};

// Thread: one.
class Products {
 public:
  virtual ~Products() = default;
  // Device memory that it works in; handed over before the first product.
  virtual size_t WorkspaceBytes() const = 0;
  virtual void SetWorkspace(void* device) = 0;
  // Settles how such products are computed, where that is found by trying, which takes seconds:
  // once, before the first MatMul. Their operands are read, their results written. Uses of
  // one n and k are better many than one: the matrices of all layers, which no cache holds.
  virtual void Tune(absl::Span<const ProductUse> uses, DType dtype, Stream stream) {}
  // False if nothing was enqueued: our own kernels are faster, or the only ones. Measures nothing
  // and waits for nothing: the stream may be under capture.
  virtual bool MatMul(const MatMulLaunch& launch, DType dtype, Stream stream) = 0;
};

// Of cuBLASLt: what NVIDIA recommends for Hopper, and enough for all before it.
inline constexpr size_t kCublasWorkspaceBytes = size_t{32} << 20;

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCTS_H_
