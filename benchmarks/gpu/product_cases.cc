#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "benchmarks/gpu/product_operands.h"

namespace baton::gpu_bench {
namespace {

using backend::cuda::LaunchMatMul;
using backend::cuda::MatMulFloor;
using backend::cuda::MatMulLaunch;
using backend::cuda::MatMulOperations;
using backend::cuda::MatMulShape;

std::string NameOf(const ModelShape& model, const MatrixShape& matrix, int rows) {
  return absl::StrCat(model.name, " ", matrix.name, " m", rows);
}

Row& Describe(Row& row, const ModelShape& model, const MatrixShape& matrix, int rows) {
  return row.Text("model", model.name)
      .Text("matrix", matrix.name)
      .Number("m", rows)
      .Number("n", matrix.n)
      .Number("k", matrix.k);
}

void TimeProduct(KernelBench& bench, const ModelShape& model, const MatrixShape& matrix, int rows,
                 bool library) {
  BenchDevice& device = bench.device;
  const std::string kernel = library ? "cublas" : "matmul_rows";
  const std::string name = NameOf(model, matrix, rows);
  if (!bench.Wanted(kernel, name)) return;
  Row row = bench.Begin(kernel, name);
  Describe(row, model, matrix, rows);
  ProductOperands operands(device, rows, matrix);
  if (!operands.found()) return KernelBench::Skip(std::move(row));
  row.Number("weight_bytes", static_cast<double>(operands.weight_bytes()));
  bool served = true;
  const double seconds = device.Seconds([&](int turn) {
    const MatMulLaunch& launch = operands.At(turn);
    if (library) {
      served = served && device.products()->MatMul(launch, device.dtype(), device.stream());
    } else {
      LaunchMatMul(launch, device.dtype(), device.stream(), MatMulShape::kRows);
    }
  });
  if (!served) {
    row.Text("skipped", "cuBLASLt does not serve it").Print();
    return;
  }
  row.Took(seconds, WorkOf(MatMulFloor(rows, matrix.n, matrix.k, false),
                           MatMulOperations(rows, matrix.n, matrix.k)))
      .Print();
}

void TimeQuantized(KernelBench& bench, const ModelShape& model, const MatrixShape& matrix, int rows,
                   int bits) {
  BenchDevice& device = bench.device;
  const std::string kernel = absl::StrCat("quantized_int", bits);
  const std::string name = NameOf(model, matrix, rows);
  if (!bench.Wanted(kernel, name)) return;
  Row row = bench.Begin(kernel, name);
  Describe(row, model, matrix, rows);
  QuantizedOperands operands(device, rows, matrix, bits, model.group_size);
  if (!operands.found()) return KernelBench::Skip(std::move(row));
  row.Number("weight_bytes", static_cast<double>(operands.weight_bytes()));
  const double seconds = device.Seconds([&](int turn) {
    backend::cuda::LaunchQuantizedMatMul(operands.At(turn), bits, device.dtype(), device.stream());
  });
  row.Took(seconds, WorkOf(backend::cuda::QuantizedMatMulFloor(rows, matrix.n, matrix.k, bits,
                                                               model.group_size, false),
                           MatMulOperations(rows, matrix.n, matrix.k)))
      .Print();
}

}  // namespace

double ProductSeconds(BenchDevice& device, int rows, const MatrixShape& matrix) {
  device.Reset();
  ProductOperands operands(device, rows, matrix);
  if (!operands.found()) return std::numeric_limits<double>::infinity();
  Tune(device, operands);
  return device.Seconds([&](int turn) { Multiply(device, operands.At(turn)); });
}

void TimeProducts(KernelBench& bench) {
  for (const ModelShape& model : bench.grid.models) {
    if (model.bits > 0) continue;
    std::vector<MatrixShape> matrices = LayerMatrices(model);
    matrices.push_back(LmHead(model));
    for (const MatrixShape& matrix : matrices) {
      for (const int rows : bench.grid.gemv_rows) {
        TimeProduct(bench, model, matrix, rows, false);
        if (bench.device.products() != nullptr) TimeProduct(bench, model, matrix, rows, true);
      }
    }
  }
}

void TimeQuantizedProducts(KernelBench& bench) {
  for (const ModelShape& model : bench.grid.models) {
    if (model.bits == 0) continue;
    for (const MatrixShape& matrix : LayerMatrices(model)) {
      for (const int bits : {4, 8}) {
        for (const int rows : bench.grid.quantized_rows) {
          TimeQuantized(bench, model, matrix, rows, bits);
        }
      }
    }
  }
}

}  // namespace baton::gpu_bench
