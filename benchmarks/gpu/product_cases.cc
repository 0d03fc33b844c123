#include <algorithm>
#include <bit>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/floors.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "benchmarks/gpu/random_numbers.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/quantized.h"
#include "common/base/check.h"

namespace baton::gpu_bench {
namespace {

using backend::cuda::LaunchMatMul;
using backend::cuda::MatMulLaunch;
using backend::cuda::MatMulShape;
using backend::cuda::QuantizedMatMulLaunch;

constexpr int kElementBytes = 2;

struct Operands {
  MatMulLaunch launch;
  std::byte* weights = nullptr;
  int64_t weight_bytes = 0;
  int turns = 1;
  bool found = false;

  const MatMulLaunch& At(int turn) {
    launch.w = weights + turn % turns * weight_bytes;
    return launch;
  }
};

Operands TakeOperands(BenchDevice& device, int rows, const MatrixShape& matrix) {
  Operands operands;
  operands.weight_bytes = int64_t{kElementBytes} * matrix.n * matrix.k;
  operands.turns = device.Turns(static_cast<double>(operands.weight_bytes));
  operands.weights = device.Take(static_cast<size_t>(operands.turns * operands.weight_bytes));
  operands.launch = {.x = device.Take<uint16_t>(int64_t{rows} * matrix.k),
                     .x_stride = matrix.k,
                     .w = nullptr,
                     .bias = nullptr,
                     .out = device.Take<float>(int64_t{rows} * matrix.n),
                     .out_stride = matrix.n,
                     .rows = rows,
                     .n = matrix.n,
                     .k = matrix.k};
  operands.found =
      operands.weights != nullptr && operands.launch.x != nullptr && operands.launch.out != nullptr;
  return operands;
}

void TimeProduct(KernelBench& bench, const ModelShape& model, const MatrixShape& matrix, int rows,
                 bool library) {
  BenchDevice& device = bench.device;
  const std::string kernel = library ? "cublas" : "matmul_rows";
  const std::string name = absl::StrCat(model.name, " ", matrix.name, " m", rows);
  if (!bench.Wanted(kernel, name)) return;
  Row row = bench.Begin(kernel, name);
  row.Text("model", model.name)
      .Text("matrix", matrix.name)
      .Number("m", rows)
      .Number("n", matrix.n)
      .Number("k", matrix.k)
      .Number("weight_bytes", double{kElementBytes} * matrix.n * matrix.k);
  Operands operands = TakeOperands(device, rows, matrix);
  if (!operands.found) return KernelBench::Skip(std::move(row));
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
  row.Took(seconds, Product(rows, matrix.n, matrix.k, kElementBytes)).Print();
}

void TimeQuantized(KernelBench& bench, const ModelShape& model, const MatrixShape& matrix, int rows,
                   int bits) {
  BenchDevice& device = bench.device;
  const std::string kernel = absl::StrCat("quantized_int", bits);
  const std::string name = absl::StrCat(model.name, " ", matrix.name, " m", rows);
  if (!bench.Wanted(kernel, name)) return;
  Row row = bench.Begin(kernel, name);
  row.Text("model", model.name)
      .Text("matrix", matrix.name)
      .Number("m", rows)
      .Number("n", matrix.n)
      .Number("k", matrix.k);
  constexpr int kTileRows = 8, kTileRowBytes = 64;
  const int64_t tiles = (matrix.n + kTileRows - 1) / kTileRows;
  const int tile_columns = kTileRowBytes * 8 / bits;
  QuantizedMatMulLaunch launch = {};
  launch.w.n = matrix.n;
  launch.w.k = matrix.k;
  launch.w.column_tiles = (matrix.k + tile_columns - 1) / tile_columns;
  launch.w.group_count = (matrix.k + model.group_size - 1) / model.group_size;
  launch.w.steps_a_group_log2 = std::countr_zero(static_cast<unsigned>(model.group_size / 32));
  launch.w.bf16_scales = device.dtype() == backend::DType::kBF16;
  const int64_t value_bytes = tiles * launch.w.column_tiles * kTileRows * kTileRowBytes;
  const int64_t group_words = tiles * launch.w.group_count * kTileRows;
  const int turns = device.Turns(static_cast<double>(value_bytes));
  std::byte* const values = device.Take(static_cast<size_t>(turns * value_bytes));
  uint32_t* const groups = device.Take<uint32_t>(group_words);
  launch.w.groups = groups;
  launch.x = device.Take<uint16_t>(int64_t{rows} * matrix.k);
  launch.x_stride = matrix.k;
  launch.out = device.Take<float>(int64_t{rows} * matrix.n);
  launch.out_stride = matrix.n;
  launch.rows = rows;
  if (values == nullptr || groups == nullptr || launch.x == nullptr || launch.out == nullptr) {
    return KernelBench::Skip(std::move(row));
  }
  // Scales at random, zero points in the middle.
  std::vector<uint32_t> host;
  for (const uint16_t scale : RandomHalves(static_cast<size_t>(group_words), device.dtype())) {
    host.push_back(scale | (1u << (bits - 1)) << 16);
  }
  device.Copy(groups, host.data(), host.size() * sizeof(host[0]));
  const double seconds = device.Seconds([&](int turn) {
    launch.w.values = values + turn % turns * value_bytes;
    LaunchQuantizedMatMul(launch, bits, device.dtype(), device.stream());
  });
  row.Number("weight_bytes", static_cast<double>(value_bytes + 4 * group_words))
      .Took(seconds,
            QuantizedProduct(rows, matrix.n, matrix.k, bits, model.group_size, kElementBytes))
      .Print();
}

}  // namespace

double ProductSeconds(BenchDevice& device, int rows, const MatrixShape& matrix) {
  device.Reset();
  Operands operands = TakeOperands(device, rows, matrix);
  if (!operands.found) return std::numeric_limits<double>::infinity();
  // As a worker does when it loads a model.
  if (device.products() != nullptr) {
    std::vector<backend::cuda::ProductUse> uses;
    for (int turn = 0; turn < operands.turns; ++turn) uses.push_back({operands.At(turn), rows});
    device.products()->Tune(uses, device.dtype(), device.stream());
  }
  return device.Seconds([&](int turn) {
    const MatMulLaunch& launch = operands.At(turn);
    if (device.products() == nullptr ||
        !device.products()->MatMul(launch, device.dtype(), device.stream())) {
      LaunchMatMul(launch, device.dtype(), device.stream());
    }
  });
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
