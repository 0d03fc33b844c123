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
  const Grid& grid;  // of shapes to measure
  // Measures only rows whose "<kernel> <case> " contains this; empty: all rows.
  std::string filter;

  bool Wanted(const std::string& kernel, const std::string& name) const {
    return absl::StrContains(kernel + " " + name + " ", filter);
  }
  // Begins a row; the memory of the one before is free again.
  Row Begin(const std::string& kernel, const std::string& name) {
    device.Reset();
    return std::move(Row("kernels", kernel).Text("case", name).Text("dtype", Name(device.dtype())));
  }
  // For cases that do not fit into device memory.
  static void Skip(Row row) { row.Text("skipped", "the device has too little memory").Print(); }
};

void TimeAttention(KernelBench& bench);
void TimeProducts(KernelBench& bench);
void TimeQuantizedProducts(KernelBench& bench);
// Compares one fused kernel (gate and up projections, Gate) with two: a product, then Gate.
// With 16-bit weights, Products::Tune has measured the fastest kernel for that product in this run;
// otherwise it is Baton's.
void TimeGatedProducts(KernelBench& bench);
// Compares one kernel, norm and product, with two.
void TimeNormedProducts(KernelBench& bench);
// Routing, products and sums of a layer of experts.
void TimeExperts(KernelBench& bench);
void TimeRecurrences(KernelBench& bench);  // the delta rule, Mamba 2, convolutions
void TimePasses(KernelBench& bench);       // norm, rotation, gate, gather, caps
void TimeSampling(KernelBench& bench);
void TimeBlockCopies(KernelBench& bench);  // within the device: whole blocks, a transfer's chunks

// Returns the seconds of the product of x [rows, k] and a matrix, by cuBLASLt or, where it is
// missing, by Baton's kernels; infinity if there is no memory. The sum over a model's matrices
// bounds a prompt's time from below.
double ProductSeconds(BenchDevice& device, int rows, const MatrixShape& matrix);

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_KERNEL_CASES_H_
