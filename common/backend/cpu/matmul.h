// out = x · Wᵀ + bias on all threads.
#ifndef BATON_COMMON_BACKEND_CPU_MATMUL_H_
#define BATON_COMMON_BACKEND_CPU_MATMUL_H_

#include <cstdint>
#include <vector>

#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/packed_weights.h"
#include "common/backend/cpu/quantized_panels.h"
#include "common/backend/cpu/thread_pool.h"

namespace baton::backend {

// Cuts products into slices of panels and rows. Every element of the result is one chain of
// additions in the order of k, so its bits depend on neither the cut nor the number of rows.
//
// Thread: as the backend that owns it.
class MatMulRunner {
 public:
  MatMulRunner(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  void Run(const Tensor& x, const CpuMatrix& weights, const float* bias, const Tensor& out);

 private:
  void RunPacked(const Tensor& x, const PackedWeights& weights, const float* bias,
                 const Tensor& out);
  // rounded: x, as RoundRows left it.
  void RunQuantized(int64_t rows, const ActivationBlock* rounded, const QuantizedPanels& weights,
                    const float* bias, const Tensor& out);
  void RunStacked(const Tensor& x, const StackedMatrix& weights, const float* bias,
                  const Tensor& out);
  // x for the bf16 kernels: padded with zeros to the width of the panels.
  const uint16_t* PadRows(const Tensor& x, int64_t padded_in);
  const uint16_t* PackRows(const Tensor& x, int64_t padded_in);
  uint16_t* Scratch(int64_t elements);
  // x in 8 bits, [rows, blocks of a row].
  const ActivationBlock* RoundRows(const Tensor& x, absl::Span<const int32_t> order);

  const Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<uint16_t> scratch_;
  std::vector<ActivationBlock> rounded_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_MATMUL_H_
