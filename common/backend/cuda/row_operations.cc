#include "common/backend/cuda/row_operations.h"

#include "common/backend/cuda/kernels/elementwise.h"
#include "common/backend/cuda/kernels/norm.h"
#include "common/backend/cuda/matrices/gated_product.h"
#include "common/base/check.h"

namespace baton::backend::cuda {

void CheckRows(const Tensor& tensor, int64_t rows, int64_t cols) {
  BATON_CHECK_EQ(tensor.rows, rows);
  BATON_CHECK_EQ(tensor.cols, cols);
  BATON_CHECK(tensor.row_stride >= cols && tensor.row_stride % 8 == 0 && cols % 8 == 0)
      << cols << " columns, " << tensor.row_stride << " apart";
  BATON_CHECK_EQ(reinterpret_cast<uintptr_t>(tensor.data) % 16, uintptr_t{0});
}
float* F32(const Tensor& tensor) {
  BATON_CHECK(tensor.dtype == DType::kF32);
  return static_cast<float*>(tensor.data);
}
const float* F32(const Buffer& buffer, int64_t floats) {
  BATON_CHECK_GE(buffer.size_bytes(), static_cast<size_t>(floats) * sizeof(float));
  return static_cast<const float*>(buffer.data());
}

void EnqueueNorm(const NormArgs& args, Stream stream) {
  const Tensor& x = args.residual;
  const bool has_delta = args.delta.data != nullptr;
  CheckRows(x, x.rows, x.cols);
  CheckRows(args.out, x.rows, x.cols);
  BATON_CHECK(args.out.data != x.data ||
              (args.out.dtype == DType::kF32 && args.out.row_stride == x.row_stride));
  if (has_delta) CheckRows(args.delta, x.rows, x.cols);
  BATON_CHECK(has_delta || args.delta_weight == nullptr);
  const auto weight = [&](const Buffer* buffer) {
    return buffer == nullptr ? nullptr : F32(*buffer, x.cols);
  };
  LaunchNorm({.x = F32(x),
              .x_stride = x.row_stride,
              .delta = has_delta ? F32(args.delta) : nullptr,
              .delta_stride = has_delta ? args.delta.row_stride : 0,
              .delta_scale = args.delta_scale,
              .delta_weight = weight(args.delta_weight),
              .weight = weight(args.weight),
              .out = args.out.data,
              .out_stride = args.out.row_stride,
              .cols = static_cast<int>(x.cols),
              .eps = args.eps},
             args.out.dtype, static_cast<int>(x.rows), stream);
}

void EnqueueGate(const Tensor& gate_up, const GatedArgs& args, const Tensor& out, Stream stream) {
  CheckRows(gate_up, out.rows, GatedParts(args.activation) * out.cols);
  CheckRows(out, out.rows, out.cols);
  LaunchGate({.gate_up = F32(gate_up),
              .gate_up_stride = gate_up.row_stride,
              .out = out.data,
              .out_stride = out.row_stride,
              .cols = static_cast<int>(out.cols),
              .gating = GatingOf(args)},
             out.dtype, static_cast<int>(out.rows), stream);
}

void EnqueueGateBy(const Tensor& gate, const Tensor& by, GatedActivation activation,
                   const Tensor& out, Stream stream) {
  BATON_CHECK_EQ(GatedParts(activation), 2);
  CheckRows(gate, out.rows, out.cols);
  CheckRows(by, out.rows, out.cols);
  CheckRows(out, out.rows, out.cols);
  LaunchGate({.gate_up = F32(gate),
              .gate_up_stride = gate.row_stride,
              .up = F32(by),
              .up_stride = by.row_stride,
              .out = out.data,
              .out_stride = out.row_stride,
              .cols = static_cast<int>(out.cols),
              .gating = GatingOf({.activation = activation})},
             out.dtype, static_cast<int>(out.rows), stream);
}

void EnqueueScaleLogits(const Tensor& logits, float scale, float cap, Stream stream) {
  BATON_CHECK(logits.row_stride >= logits.cols && logits.row_stride % 8 == 0);
  BATON_CHECK_EQ(reinterpret_cast<uintptr_t>(logits.data) % 16, uintptr_t{0});
  LaunchScaleLogits({.logits = F32(logits),
                     .stride = logits.row_stride,
                     .cols = static_cast<int>(logits.cols),
                     .scale = scale,
                     .cap = cap},
                    static_cast<int>(logits.rows), stream);
}

}  // namespace baton::backend::cuda
