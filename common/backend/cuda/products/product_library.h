// What is needed of somebody else's matrix products, and of a clock, to try them out: cuBLASLt
// (cublas_products.cc), or what a test puts in its place.
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
  // Whatever its algorithms' words depend on.
  virtual std::string Version() const = 0;
  // Device memory that it works in; handed over before the first product.
  virtual size_t WorkspaceBytes() const = 0;
  virtual void SetWorkspace(void* device) = 0;
  // At most `most` algorithms for such a product, best first by the library's own judgement.
  virtual std::vector<AlgorithmWords> Suggest(const MatMulLaunch& launch, DType dtype,
                                              int most) = 0;
  // Whether it is one that serves such a product in that workspace. Any words may be asked about.
  virtual bool Accepts(const MatMulLaunch& launch, DType dtype, const AlgorithmWords& words) = 0;
  // False if the algorithm serves no such product: nothing was enqueued.
  virtual bool Run(const MatMulLaunch& launch, DType dtype, const AlgorithmWords& words,
                   Stream stream) = 0;
};

// How long a device takes. Thread: one.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  // Enqueues `before`, then `work`, and waits for both: the device's seconds from the end of the
  // one to the end of the other. REQUIRES: the stream is not being captured.
  virtual double Time(Stream stream, absl::FunctionRef<void()> before,
                      absl::FunctionRef<void()> work) = 0;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PRODUCTS_PRODUCT_LIBRARY_H_
