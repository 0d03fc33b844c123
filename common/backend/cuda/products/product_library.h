// The interface of a library of matrix products, and of a clock to measure them: cuBLASLt
// (cublas_products.cc), or a fake.
#ifndef BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCT_LIBRARY_H_
#define BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCT_LIBRARY_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/products/product_choices.h"

namespace baton::backend::cuda {

// dtype: of x and W, kF16 or kBF16. Thread: one.
class ProductLibrary {
 public:
  virtual ~ProductLibrary() = default;
  // The words of an algorithm are valid for one version.
  virtual std::string Version() const = 0;
  // Its workspace on the device, set before the first product.
  virtual size_t WorkspaceBytes() const = 0;
  virtual void SetWorkspace(void* device) = 0;
  // At most `most` algorithms for such a product, best first by the library's heuristic.
  virtual std::vector<AlgorithmWords> Suggest(const MatMulLaunch& launch, DType dtype,
                                              int most) = 0;
  // Whether `words` are an algorithm that serves such a product in the workspace; any words are
  // safe.
  virtual bool Accepts(const MatMulLaunch& launch, DType dtype, const AlgorithmWords& words) = 0;
  // False, enqueuing nothing, if the algorithm does not serve such a product.
  virtual bool Run(const MatMulLaunch& launch, DType dtype, const AlgorithmWords& words,
                   Stream stream) = 0;
};

// Measures the device's time. Thread: one.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  // Enqueues `before`, then `work`, and waits for both. Returns the device's seconds from the end
  // of `before` to the end of `work`. REQUIRES: the stream is not being captured.
  virtual double Time(Stream stream, absl::FunctionRef<void()> before,
                      absl::FunctionRef<void()> work) = 0;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCT_LIBRARY_H_
