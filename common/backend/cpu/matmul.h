// out = x · Wᵀ + bias on all threads.
#ifndef BATON_COMMON_BACKEND_CPU_MATMUL_H_
#define BATON_COMMON_BACKEND_CPU_MATMUL_H_

#include <cstdint>
#include <vector>

#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/packed_weights.h"
#include "common/backend/cpu/thread_pool.h"

namespace baton::backend {

// Cuts products into slices of panels and rows. Every element of the result is one chain of
// additions in the order of k, so its bits depend on neither the cut nor the number of rows.
//
// Thread: as the backend that owns it.
class MatMulRunner {
 public:
  MatMulRunner(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  void Run(const Tensor& x, const PackedWeights& weights, const float* bias, const Tensor& out);

 private:
  // x for the bf16 kernels: padded with zeros to the width of the panels.
  const uint16_t* PadRows(const Tensor& x, int64_t padded_in);
  const uint16_t* PackRows(const Tensor& x, int64_t padded_in);
  uint16_t* Scratch(int64_t elements);

  const Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<uint16_t> scratch_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_MATMUL_H_
