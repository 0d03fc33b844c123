// The kernels that matter for speed: one row of figures for each shape.
#ifndef BATON_BENCHMARKS_GPU_KERNEL_CASES_H_
#define BATON_BENCHMARKS_GPU_KERNEL_CASES_H_

#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "benchmarks/gpu/bench_device.h"
#include "benchmarks/gpu/row.h"
#include "benchmarks/gpu/shapes.h"

namespace baton::gpu_bench {

struct KernelBench {
  BenchDevice& device;
  const Grid& grid;
  // Text that a row's "kernel case " must have; empty: all.
  std::string only;

  bool Wanted(const std::string& kernel, const std::string& name) const {
    return absl::StrContains(kernel + " " + name + " ", only);
  }
  // Begins a row; the memory of the one before is free again.
  Row Begin(const std::string& kernel, const std::string& name) {
    device.Reset();
    return std::move(Row("kernels", kernel).Text("case", name).Text("dtype", Name(device.dtype())));
  }
  // For what finds no memory.
  static void Skip(Row row) { row.Text("skipped", "the device has too little memory").Print(); }
};

void TimeAttention(KernelBench& bench);
void TimeProducts(KernelBench& bench);
void TimeQuantizedProducts(KernelBench& bench);
// Gate and up with SiluMul: in one kernel, and in two of which the product is our kernel or, with
// 16-bit weights, what was measured to be the fastest.
void TimeGatedProducts(KernelBench& bench);
void TimePasses(KernelBench& bench);  // norm, rotation, silu·mul, gather
void TimeSampling(KernelBench& bench);
void TimeBlockCopies(KernelBench& bench);

// Of x [rows, k] with a matrix, by cuBLASLt or, where there is none, our kernels; infinite
// if there is no memory. For the sum of a prompt's products.
double ProductSeconds(BenchDevice& device, int rows, const MatrixShape& matrix);

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_KERNEL_CASES_H_
