#include "benchmarks/gpu/product_operands.h"

#include <bit>
#include <vector>

#include "benchmarks/gpu/random_numbers.h"
#include "common/backend/quantized.h"

namespace baton::gpu_bench {
namespace {

constexpr int64_t kSliceSumsBytes = int64_t{32} << 20;  // a worker's room for them

}  // namespace

ProductOperands::ProductOperands(BenchDevice& device, int rows, const MatrixShape& matrix)
    : weight_bytes_(int64_t{kElementBytes} * matrix.n * matrix.k),
      turns_(device.Turns(static_cast<double>(weight_bytes_))),
      weights_(device.Take(static_cast<size_t>(turns_ * weight_bytes_))) {
  launch_ = {.x = device.Take<uint16_t>(int64_t{rows} * matrix.k),
             .x_stride = matrix.k,
             .w = nullptr,
             .bias = nullptr,
             .out = device.Take<float>(int64_t{rows} * matrix.n),
             .out_stride = matrix.n,
             .rows = rows,
             .n = matrix.n,
             .k = matrix.k};
  found_ = weights_ != nullptr && launch_.x != nullptr && launch_.out != nullptr;
}

const backend::cuda::MatMulLaunch& ProductOperands::At(int turn) {
  launch_.w = weights_ + turn % turns_ * weight_bytes_;
  return launch_;
}

void Tune(BenchDevice& device, ProductOperands& operands) {
  if (device.products() == nullptr) return;
  std::vector<backend::cuda::ProductUse> uses;
  for (int turn = 0; turn < operands.turns(); ++turn) {
    uses.push_back({operands.At(turn), operands.At(turn).rows});
  }
  device.products()->Tune(uses, device.dtype(), device.stream());
}

void Multiply(BenchDevice& device, const backend::cuda::MatMulLaunch& launch) {
  if (device.products() == nullptr ||
      !device.products()->MatMul(launch, device.dtype(), device.stream())) {
    LaunchMatMul(launch, device.dtype(), device.stream());
  }
}

QuantizedOperands::QuantizedOperands(BenchDevice& device, int rows, const MatrixShape& matrix,
                                     int bits, int group_size) {
  const backend::QuantizedExtent extent =
      backend::QuantizedExtentOf(matrix.n, matrix.k, bits, group_size);
  value_bytes_ = extent.value_bytes();
  weight_bytes_ = extent.size_bytes();
  turns_ = device.Turns(static_cast<double>(value_bytes_));
  values_ = device.Take(static_cast<size_t>(turns_ * value_bytes_));
  const int64_t group_words = (weight_bytes_ - value_bytes_) / int64_t{sizeof(uint32_t)};
  uint32_t* const groups = device.Take<uint32_t>(group_words);
  launch_.w = {.values = values_,
               .groups = groups,
               .n = matrix.n,
               .k = matrix.k,
               .column_tiles = static_cast<int>(extent.column_tiles),
               .group_count = static_cast<int>(extent.group_words),
               .steps_a_group_log2 = std::countr_zero(static_cast<unsigned>(group_size / 32)),
               .bf16_scales = device.dtype() == backend::DType::kBF16};
  launch_.x = device.Take<uint16_t>(int64_t{rows} * matrix.k);
  launch_.x_stride = matrix.k;
  launch_.out = device.Take<float>(int64_t{rows} * matrix.n);
  launch_.out_stride = matrix.n;
  launch_.rows = rows;
  // MultiplyQuantized launches it with this shape.
  launch_.tile_rows = backend::cuda::QuantizedTileRows(device.properties().kernel_capability);
  launch_.slice_sums_floats = kSliceSumsBytes / int64_t{sizeof(float)};
  launch_.slice_sums = device.Take<float>(launch_.slice_sums_floats);
  if (launch_.slice_sums == nullptr) launch_.slice_sums_floats = 0;
  found_ =
      values_ != nullptr && groups != nullptr && launch_.x != nullptr && launch_.out != nullptr;
  if (!found_) return;
  std::vector<uint32_t> host;
  for (const uint16_t scale : RandomHalves(static_cast<size_t>(group_words), device.dtype())) {
    host.push_back(scale | (1u << (bits - 1)) << 16);
  }
  device.Copy(groups, host.data(), host.size() * sizeof(host[0]));
}

const backend::cuda::QuantizedMatMulLaunch& QuantizedOperands::At(int turn) {
  launch_.w.values = values_ + turn % turns_ * value_bytes_;
  return launch_;
}

}  // namespace baton::gpu_bench
