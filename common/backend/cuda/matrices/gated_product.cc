#include "common/backend/cuda/matrices/gated_product.h"

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/matrices/device_weights.h"
#include "common/base/check.h"

namespace baton::backend::cuda {

Gating GatingOf(const GatedArgs& args) {
  // The values are the same, in the same order.
  return {.kind = static_cast<GateKind>(args.activation), .scale = args.scale};
}

bool MultiplyGated(const Tensor& x, const PackedMatrix& gate_up, const GatedArgs& args,
                   const Tensor& out, DType dtype, bool has_products,
                   const QuantizedWorkspaces& workspaces, Stream stream) {
  const auto* quantized = dynamic_cast<const CudaQuantizedMatrix*>(&gate_up);
  // A library's products gate nothing, and are better from some number of rows on.
  const int64_t most_rows = quantized != nullptr ? kQuantizedRows : kRowTile;
  if ((has_products && x.rows > most_rows) || out.dtype != dtype ||
      GatedParts(args.activation) == 1) {
    return false;
  }
  if (x.rows == 0) return true;
  BATON_CHECK(x.dtype == dtype);
  BATON_CHECK_EQ(2 * out.cols, gate_up.out_features());
  MatMulGatedLaunch launch = {
      .x = x.data,
      .x_stride = x.row_stride,
      .w = nullptr,
      .out = out.data,
      .out_stride = out.row_stride,
      .rows = static_cast<int>(x.rows),
      .cols = static_cast<int>(out.cols),
      .k = static_cast<int>(x.cols),
      .gating = GatingOf(args),
  };
  if (quantized != nullptr) {
    MultiplyQuantizedGated(launch, *quantized, dtype, workspaces, stream);
  } else {
    launch.w = static_cast<const CudaMatrix&>(gate_up).data();
    LaunchMatMulGated(launch, dtype, stream);
  }
  return true;
}

}  // namespace baton::backend::cuda
