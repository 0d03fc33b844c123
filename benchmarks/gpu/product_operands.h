// What a product with a matrix takes, in the memory of a BenchDevice. Weights are there as often as
// it needs for none to be in the cache when its turn comes.
#ifndef BATON_BENCHMARKS_GPU_PRODUCT_OPERANDS_H_
#define BATON_BENCHMARKS_GPU_PRODUCT_OPERANDS_H_

#include "benchmarks/gpu/bench_device.h"
#include "benchmarks/gpu/shapes.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/quantized.h"

namespace baton::gpu_bench {

class ProductOperands {
 public:
  ProductOperands(BenchDevice& device, int rows, const MatrixShape& matrix);

  bool found() const { return found_; }  // else there is too little memory
  int turns() const { return turns_; }
  int64_t weight_bytes() const { return weight_bytes_; }
  const backend::cuda::MatMulLaunch& At(int turn);

 private:
  backend::cuda::MatMulLaunch launch_;
  int64_t weight_bytes_ = 0;
  int turns_ = 1;
  std::byte* weights_ = nullptr;
  bool found_ = false;
};

// Finds the fastest kernel, as a worker does when it loads a model. After that, Products may choose
// Baton's kernels.
void Tune(BenchDevice& device, ProductOperands& operands);
// With the kernel that Tune found; with Baton's if there is no cuBLASLt.
void Multiply(BenchDevice& device, const backend::cuda::MatMulLaunch& launch);

// Weights of few bits: values at random, scales at random, zero points in the middle.
class QuantizedOperands {
 public:
  QuantizedOperands(BenchDevice& device, int rows, const MatrixShape& matrix, int bits,
                    int group_size);

  bool found() const { return found_; }
  int64_t weight_bytes() const { return weight_bytes_; }  // those of the groups included
  const backend::cuda::QuantizedMatMulLaunch& At(int turn);

 private:
  backend::cuda::QuantizedMatMulLaunch launch_ = {};
  int64_t weight_bytes_ = 0;
  int64_t value_bytes_ = 0;
  int turns_ = 1;
  std::byte* values_ = nullptr;
  bool found_ = false;
};

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_PRODUCT_OPERANDS_H_
