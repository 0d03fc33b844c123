// Gate and up with what gates them. A row's floor leaves out the traffic between two kernels, so
// that the rows of one case compare.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "benchmarks/gpu/product_operands.h"
#include "common/backend/cuda/kernels/elementwise.h"

namespace baton::gpu_bench {
namespace {

using backend::cuda::GateKind;
using backend::cuda::GateLaunch;
using backend::cuda::MatMulLaunch;
using backend::cuda::QuantizedMatMulLaunch;

enum class Way { kFused, kOurs, kMeasured };

const char* NameOf(Way way) {
  switch (way) {
    case Way::kFused:
      return "gated_fused";
    case Way::kOurs:
      return "gated_ours";
    case Way::kMeasured:
      return "gated_measured";
  }
  return "";
}

MatrixShape GateUp(const ModelShape& model) { return {"gate_up", 2 * model.ffn, model.hidden, 1}; }

// What follows the product in the ways that have two kernels.
GateLaunch GateOf(const float* gate_up, uint16_t* out, int cols, bool gelu = false) {
  return {.gate_up = gate_up,
          .gate_up_stride = int64_t{2} * cols,
          .out = out,
          .out_stride = cols,
          .cols = cols,
          .gating = {.kind = gelu ? GateKind::kGeluTanh : GateKind::kSilu}};
}

void TimeOne(KernelBench& bench, const ModelShape& model, int rows, Way way) {
  BenchDevice& device = bench.device;
  const std::string name = absl::StrCat(model.name, " m", rows);
  if (!bench.Wanted(NameOf(way), name)) return;
  Row row = bench.Begin(NameOf(way), name);
  row.Text("model", model.name).Number("m", rows);
  ProductOperands operands(device, rows, GateUp(model));
  uint16_t* const out = device.Take<uint16_t>(int64_t{rows} * model.ffn);
  if (!operands.found() || out == nullptr) return KernelBench::Skip(std::move(row));
  if (way == Way::kMeasured) Tune(device, operands);
  const double seconds = device.Seconds([&](int turn) {
    const MatMulLaunch& launch = operands.At(turn);
    if (way == Way::kFused) {
      backend::cuda::LaunchMatMulGated(
          {.x = launch.x,
           .x_stride = launch.x_stride,
           .w = launch.w,
           .out = out,
           .out_stride = model.ffn,
           .rows = rows,
           .cols = model.ffn,
           .k = launch.k,
           .gating = {.kind = model.gelu ? GateKind::kGeluTanh : GateKind::kSilu}},
          device.dtype(), device.stream());
      return;
    }
    if (way == Way::kMeasured) {
      Multiply(device, launch);
    } else {
      LaunchMatMul(launch, device.dtype(), device.stream());
    }
    LaunchGate(GateOf(launch.out, out, model.ffn, model.gelu), device.dtype(), rows,
               device.stream());
  });
  row.Took(seconds,
           WorkOf(backend::cuda::MatMulGatedFloor(rows, model.ffn, model.hidden),
                  backend::cuda::MatMulOperations(rows, int64_t{2} * model.ffn, model.hidden)))
      .Print();
}

void TimeQuantized(KernelBench& bench, const ModelShape& model, int bits, int rows, Way way) {
  BenchDevice& device = bench.device;
  const std::string name = absl::StrCat(model.name, " int", bits, " m", rows);
  if (!bench.Wanted(NameOf(way), name)) return;
  Row row = bench.Begin(NameOf(way), name);
  row.Text("model", model.name).Number("m", rows).Number("bits", bits);
  QuantizedOperands operands(device, rows, GateUp(model), bits, model.group_size);
  uint16_t* const out = device.Take<uint16_t>(int64_t{rows} * model.ffn);
  if (!operands.found() || out == nullptr) return KernelBench::Skip(std::move(row));
  const double seconds = device.Seconds([&](int turn) {
    const QuantizedMatMulLaunch& launch = operands.At(turn);
    if (way == Way::kFused) {
      backend::cuda::LaunchQuantizedMatMulGated({.x = launch.x,
                                                 .x_stride = launch.x_stride,
                                                 .w = launch.w,
                                                 .out = out,
                                                 .out_stride = model.ffn,
                                                 .rows = rows,
                                                 .tile_rows = launch.tile_rows,
                                                 .slice_sums = launch.slice_sums,
                                                 .slice_sums_floats = launch.slice_sums_floats},
                                                bits, device.dtype(), device.stream());
      return;
    }
    LaunchQuantizedMatMul(launch, bits, device.dtype(), device.stream());
    LaunchGate(GateOf(launch.out, out, model.ffn), device.dtype(), rows, device.stream());
  });
  row.Took(seconds,
           WorkOf(backend::cuda::QuantizedMatMulGatedFloor(rows, model.ffn, model.hidden, bits,
                                                           model.group_size),
                  backend::cuda::MatMulOperations(rows, int64_t{2} * model.ffn, model.hidden)))
      .Print();
}

}  // namespace

void TimeGatedProducts(KernelBench& bench) {
  for (const ModelShape& model : bench.grid.kernel_models) {
    if (model.ffn == 0) continue;
    for (const int rows : bench.grid.kernel_batches) {
      for (const Way way : {Way::kFused, Way::kOurs}) TimeOne(bench, model, rows, way);
    }
  }
  for (const ModelShape& model : bench.grid.models) {
    if (model.experts > 0) continue;
    std::vector<int> row_counts =
        model.bits == 0 ? bench.grid.gemv_rows : bench.grid.quantized_rows;
    if (model.bits == 0) row_counts.push_back(bench.grid.step_rows);
    for (const int rows : row_counts) {
      for (const Way way : {Way::kFused, Way::kOurs, Way::kMeasured}) {
        if (model.bits == 0) {
          if (way != Way::kMeasured || bench.device.products() != nullptr) {
            TimeOne(bench, model, rows, way);
          }
        } else if (way != Way::kMeasured) {
          for (const int bits : {4, 8}) TimeQuantized(bench, model, bits, rows, way);
        }
      }
    }
  }
}

}  // namespace baton::gpu_bench
