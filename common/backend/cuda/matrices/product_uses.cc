#include "common/backend/cuda/matrices/product_uses.h"

#include <cstdint>
#include <map>
#include <random>

#include "common/backend/cuda/matrices/device_weights.h"
#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

MatMulLaunch LaunchOf(const MatMulUse& product) {
  BATON_CHECK(product.x.dtype != DType::kF32 && product.out.dtype == DType::kF32);
  BATON_CHECK_EQ(product.x.rows, product.out.rows);
  BATON_CHECK_EQ(product.x.cols, product.weight->in_features());
  BATON_CHECK_EQ(product.out.cols, product.weight->out_features());
  return {
      .x = product.x.data,
      .x_stride = product.x.row_stride,
      .w = nullptr,
      .bias = product.bias == nullptr ? nullptr : static_cast<const float*>(product.bias->data()),
      .out = static_cast<float*>(product.out.data),
      .out_stride = product.out.row_stride,
      .rows = static_cast<int>(product.x.rows),
      .n = static_cast<int>(product.weight->out_features()),
      .k = static_cast<int>(product.weight->in_features())};
}

// Fills x with ±[0.5, 1): zeros would take less power, and so less time, than what steps multiply.
void FillAtRandom(const Tensor& x, HostStaging& staging) {
  const uint16_t half = x.dtype == DType::kF16 ? 0x3800 : 0x3f00;
  const uint16_t free = x.dtype == DType::kF16 ? 0x83ff : 0x807f;
  std::minstd_rand random;
  staging.FillDevice(
      x.data, static_cast<size_t>(x.rows * x.row_stride) * sizeof(uint16_t),
      [&](size_t, size_t size, void* to) {
        auto* const values = static_cast<uint16_t*>(to);
        for (size_t i = 0; i < size / sizeof(uint16_t); ++i) {
          values[i] = static_cast<uint16_t>(half | (static_cast<unsigned>(random() >> 8) & free));
        }
      });
}

}  // namespace

std::vector<ProductUse> UsesOf(absl::Span<const MatMulUse> products,
                               const QuantizedWorkspaces& workspaces, HostStaging& staging) {
  std::vector<ProductUse> uses;
  std::map<const void*, Tensor> inputs;  // the largest view of each
  for (const MatMulUse& product : products) {
    Tensor& input = inputs[product.x.data];
    if (product.x.rows * product.x.row_stride > input.rows * input.row_stride) input = product.x;
    MatMulLaunch launch = LaunchOf(product);
    if (const auto* quantized = dynamic_cast<const CudaQuantizedMatrix*>(product.weight)) {
      for (const MatMulLaunch& slice : SlicesOf(launch, *quantized, workspaces)) {
        uses.push_back({.launch = slice, .least_rows = kQuantizedRows + 1});
      }
    } else {
      launch.w = static_cast<const CudaMatrix&>(*product.weight).data();
      uses.push_back({.launch = launch});
    }
  }
  for (const auto& [data, input] : inputs) FillAtRandom(input, staging);
  return uses;
}

}  // namespace baton::backend::cuda
