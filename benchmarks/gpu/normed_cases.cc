// Norms before products of few rows: one kernel with both, and two.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "benchmarks/gpu/product_operands.h"
#include "common/backend/cuda/kernels/matmul_normed.h"
#include "common/backend/cuda/kernels/norm.h"

namespace baton::gpu_bench {
namespace {

using backend::cuda::MatMulGatedLaunch;
using backend::cuda::MatMulLaunch;
using backend::cuda::NormedInput;

void TimeOne(KernelBench& bench, const ModelShape& model, const MatrixShape& matrix, int rows,
             bool fused) {
  BenchDevice& device = bench.device;
  const std::string kernel = fused ? "normed_fused" : "normed_apart";
  const std::string name = absl::StrCat(model.name, " ", matrix.name, " m", rows);
  if (!bench.Wanted(kernel, name)) return;
  Row row = bench.Begin(kernel, name);
  row.Text("model", model.name)
      .Text("matrix", matrix.name)
      .Number("m", rows)
      .Number("n", matrix.n)
      .Number("k", matrix.k);
  ProductOperands operands(device, rows, matrix);
  float* const x = device.Take<float>(int64_t{rows} * matrix.k);
  const float* const weight = device.Take<float>(matrix.k);
  uint16_t* const normed = device.Take<uint16_t>(int64_t{rows} * matrix.k);
  uint16_t* const out = device.Take<uint16_t>(int64_t{rows} * model.ffn);
  if (!operands.found() || x == nullptr || weight == nullptr || normed == nullptr ||
      out == nullptr) {
    return KernelBench::Skip(std::move(row));
  }
  const NormedInput input = {.x = x, .x_stride = matrix.k, .weight = weight, .eps = 1e-6f};
  const bool gated = matrix.name == "gate_up";
  const double seconds = device.Seconds([&](int turn) {
    MatMulLaunch product = operands.At(turn);
    product.x = normed;
    product.x_stride = matrix.k;
    const MatMulGatedLaunch of_gate = {.x = normed,
                                       .x_stride = matrix.k,
                                       .w = product.w,
                                       .out = out,
                                       .out_stride = model.ffn,
                                       .rows = rows,
                                       .cols = model.ffn,
                                       .k = matrix.k};
    if (fused && gated) {
      backend::cuda::LaunchNormedMatMulGated({of_gate, input}, device.dtype(), device.stream());
    } else if (fused) {
      backend::cuda::LaunchNormedMatMul({product, input}, device.dtype(), device.stream());
    } else {
      backend::cuda::LaunchNorm({.x = x,
                                 .x_stride = matrix.k,
                                 .delta = nullptr,
                                 .delta_stride = 0,
                                 .weight = weight,
                                 .out = normed,
                                 .out_stride = matrix.k,
                                 .cols = matrix.k,
                                 .eps = 1e-6f},
                                device.dtype(), rows, device.stream());
      if (gated) {
        LaunchMatMulGated(of_gate, device.dtype(), device.stream());
      } else {
        LaunchMatMul(product, device.dtype(), device.stream());
      }
    }
  });
  // The same floor for both: what passes between two kernels is left out.
  row.Took(seconds,
           WorkOf(gated ? backend::cuda::NormedMatMulGatedFloor(rows, model.ffn, matrix.k)
                        : backend::cuda::NormedMatMulFloor(rows, matrix.n, matrix.k, false),
                  backend::cuda::MatMulOperations(rows, matrix.n, matrix.k)))
      .Print();
}

}  // namespace

void TimeNormedProducts(KernelBench& bench) {
  for (const ModelShape& model : bench.grid.models) {
    if (model.bits != 0 || model.experts > 0) continue;
    for (const MatrixShape& matrix : LayerMatrices(model)) {
      if (matrix.name != "qkv" && matrix.name != "gate_up") continue;
      for (const int rows : {1, 2, 4}) {
        if (!backend::cuda::NormsInProduct(rows, matrix.k)) continue;
        for (const bool fused : {true, false}) TimeOne(bench, model, matrix, rows, fused);
      }
    }
  }
}

}  // namespace baton::gpu_bench
