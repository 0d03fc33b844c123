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

struct MatMulProduct {
  Tensor x;
  const CpuMatrix* weights = nullptr;
  const float* bias = nullptr;  // or none
  Tensor out;
};

// Cuts products into slices of panels and rows. Every element of a result is one chain of
// additions in the order of k, so its bits depend on neither the cut nor the number of rows, nor on
// the products that run at the same time.
//
// Thread: as the backend that owns it.
class MatMulRunner {
 public:
  MatMulRunner(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  // All products at once: threads wait for each other once, not once a product. REQUIRES: no out
  // overlaps another's x or out.
  void Run(absl::Span<const MatMulProduct> products);
  void Run(const Tensor& x, const CpuMatrix& weights, const float* bias, const Tensor& out) {
    Run({{x, &weights, bias, out}});
  }

 private:
  // An x in the form that the kernels of some products take.
  struct Input {
    enum class Form { kAsItIs, kPadded, kPacked, kRounded };
    Form form = Form::kAsItIs;
    Tensor x;
    int64_t padded_in = 0;                 // of kPadded and kPacked
    absl::Span<const int32_t> order = {};  // of kRounded
    int64_t offset = 0;                    // in scratch_ or rounded_
    int first_task = 0, task_count = 0;
    int64_t rows_per_task = 0;

    bool SameAs(const Input& other) const;
  };
  // A product with a matrix of one form.
  struct Part {
    const PanelMatrix* weights = nullptr;
    const float* bias = nullptr;
    Tensor out;
    size_t input = 0;
    int64_t panel_tasks = 0, row_tasks = 0, rows_per_task = 0;
    int first_task = 0;
  };

  // Sets parts_ and inputs_.
  void Plan(absl::Span<const MatMulProduct> products);
  void AddPart(const Tensor& x, const PanelMatrix& weights, const float* bias, const Tensor& out);
  void CutParts();
  void PrepareInputs();
  void Prepare(const Input& input, int task);
  void Multiply(const Part& part, int task);
  template <class Slice>
  void MultiplySlice(const Part& part, int task, Slice slice, int64_t first_row,
                     void (*multiply)(const Slice&));

  const Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<Input> inputs_;
  std::vector<Part> parts_;
  std::vector<uint16_t> scratch_;  // for the bf16 kernels: rows padded with zeros, or packed
  uint16_t* aligned_scratch_ = nullptr;
  std::vector<ActivationBlock> rounded_;  // [rows, blocks of a row], in 8 bits
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_MATMUL_H_
