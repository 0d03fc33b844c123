#include "common/backend/cuda/product_operations.h"

#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/matmul_normed.h"
#include "common/backend/cuda/kernels/quantized_normed.h"
#include "common/backend/cuda/matrices/device_weights.h"
#include "common/backend/cuda/matrices/gated_product.h"
#include "common/backend/cuda/row_operations.h"
#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

const CudaQuantizedMatrix* QuantizedOf(const PackedMatrix& weight) {
  return dynamic_cast<const CudaQuantizedMatrix*>(&weight);
}

// x is still to come.
MatMulLaunch LaunchOf(const PackedMatrix& weight, const Buffer* bias, const Tensor& out) {
  BATON_CHECK_EQ(out.cols, weight.out_features());
  return {
      .x = nullptr,
      .x_stride = 0,
      .w = QuantizedOf(weight) != nullptr ? nullptr : static_cast<const CudaMatrix&>(weight).data(),
      .bias = bias == nullptr ? nullptr : F32(*bias, out.cols),
      .out = F32(out),
      .out_stride = out.row_stride,
      .rows = static_cast<int>(out.rows),
      .n = static_cast<int>(weight.out_features()),
      .k = static_cast<int>(weight.in_features()),
  };
}
void SetX(const Tensor& x, DType dtype, MatMulLaunch* launch) {
  BATON_CHECK(x.dtype == dtype);
  CheckRows(x, launch->rows, launch->k);
  launch->x = x.data;
  launch->x_stride = x.row_stride;
}

bool IsOneKernel(const NormArgs& norm, const PackedMatrix& weight, const ProductMeans& means) {
  const CudaQuantizedMatrix* const quantized = QuantizedOf(weight);
  return means.products == nullptr &&
         (quantized == nullptr || (quantized->order() == nullptr && quantized->bits() != kFp4)) &&
         norm.delta.data == nullptr && norm.weight != nullptr && norm.out.dtype == means.dtype &&
         NormsInProduct(static_cast<int>(norm.residual.rows), static_cast<int>(norm.residual.cols));
}
NormedInput InputOf(const NormArgs& norm, const PackedMatrix& weight) {
  CheckRows(norm.residual, norm.residual.rows, weight.in_features());
  return {.x = F32(norm.residual),
          .x_stride = norm.residual.row_stride,
          .weight = F32(*norm.weight, norm.residual.cols),
          .eps = norm.eps};
}

void Multiply(const MatMulLaunch& launch, const PackedMatrix& weight, const ProductMeans& means) {
  if (launch.rows == 0) return;
  if (const CudaQuantizedMatrix* const quantized = QuantizedOf(weight); quantized != nullptr) {
    return MultiplyQuantized(launch, *quantized, means.dtype, means.workspaces, means.products,
                             means.stream);
  }
  if (means.products != nullptr && means.products->MatMul(launch, means.dtype, means.stream)) {
    return;
  }
  LaunchMatMul(launch, means.dtype, means.stream);
}

}  // namespace

void EnqueueMatMul(const Tensor& x, const PackedMatrix& weight, const Buffer* bias,
                   const Tensor& out, const ProductMeans& means) {
  BATON_CHECK_EQ(out.rows, x.rows);
  MatMulLaunch launch = LaunchOf(weight, bias, out);
  SetX(x, means.dtype, &launch);
  Multiply(launch, weight, means);
}

bool EnqueueNormMatMul(const NormArgs& norm, const PackedMatrix& weight, const Buffer* bias,
                       const Tensor& out, const ProductMeans& means) {
  if (!IsOneKernel(norm, weight, means)) return false;
  BATON_CHECK_EQ(out.rows, norm.residual.rows);
  const MatMulLaunch product = LaunchOf(weight, bias, out);
  const NormedInput input = InputOf(norm, weight);
  if (const CudaQuantizedMatrix* const quantized = QuantizedOf(weight); quantized != nullptr) {
    LaunchQuantizedNormed({.input = input,
                           .w = quantized->view(),
                           .bias = product.bias,
                           .out = product.out,
                           .out_stride = product.out_stride,
                           .rows = product.rows},
                          quantized->bits(), means.dtype, means.stream);
  } else {
    LaunchNormedMatMul({product, input}, means.dtype, means.stream);
  }
  return true;
}

bool EnqueueNormMatMulGated(const NormArgs& norm, const PackedMatrix& gate_up,
                            const GatedArgs& args, const Tensor& out, const ProductMeans& means) {
  if (!IsOneKernel(norm, gate_up, means) || out.dtype != means.dtype ||
      GatedParts(args.activation) == 1) {
    return false;
  }
  BATON_CHECK_EQ(2 * out.cols, gate_up.out_features());
  CheckRows(out, norm.residual.rows, out.cols);
  const NormedInput input = InputOf(norm, gate_up);
  if (const CudaQuantizedMatrix* const quantized = QuantizedOf(gate_up); quantized != nullptr) {
    LaunchQuantizedNormedGated({.input = input,
                                .w = quantized->view(),
                                .out = out.data,
                                .out_stride = out.row_stride,
                                .rows = static_cast<int>(out.rows),
                                .gating = GatingOf(args)},
                               quantized->bits(), means.dtype, means.stream);
    return true;
  }
  LaunchNormedMatMulGated({{.x = nullptr,
                            .x_stride = 0,
                            .w = static_cast<const CudaMatrix&>(gate_up).data(),
                            .out = out.data,
                            .out_stride = out.row_stride,
                            .rows = static_cast<int>(out.rows),
                            .cols = static_cast<int>(out.cols),
                            .k = static_cast<int>(gate_up.in_features()),
                            .gating = GatingOf(args)},
                           input},
                          means.dtype, means.stream);
  return true;
}

bool AddsProducts(const PackedMatrix& weight, int64_t rows, const ProductMeans& means) {
  return means.products == nullptr && rows <= kAddedRows;
}

void EnqueueMatMulAdd(const Tensor& x, const PackedMatrix& weight, const Buffer* bias, float scale,
                      const Tensor& residual, const ProductMeans& means) {
  BATON_CHECK(AddsProducts(weight, x.rows, means) && scale != 0);
  MatMulLaunch launch = LaunchOf(weight, bias, residual);
  SetX(x, means.dtype, &launch);
  launch.added_scale = scale;
  Multiply(launch, weight, means);
}

}  // namespace baton::backend::cuda
