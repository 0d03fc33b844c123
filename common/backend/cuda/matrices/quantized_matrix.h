// Weights of few bits on the device, and products with them.
#ifndef BATON_COMMON_BACKEND_CUDA_MATRICES_QUANTIZED_MATRIX_H_
#define BATON_COMMON_BACKEND_CUDA_MATRICES_QUANTIZED_MATRIX_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/kernels/quantized.h"
#include "common/backend/cuda/products/products.h"
#include "common/backend/cuda/runtime/host_staging.h"

namespace baton::backend::cuda {

// Packed as kernels/quantized.h says.
class CudaQuantizedMatrix final : public PackedMatrix {
 public:
  // UNIMPLEMENTED (UNSUPPORTED_MODEL) if in_features is no multiple of 8, a group (unless it has
  // all columns) no power of two from 32 on, or the parts have their columns in different orders.
  static absl::StatusOr<std::unique_ptr<PackedMatrix>> Make(
      absl::Span<const QuantizedHostMatrix> stacked, DType dtype, Backend& backend,
      HostStaging& staging);
  CudaQuantizedMatrix(const QuantizedView& view, int bits, std::unique_ptr<Buffer> memory,
                      std::unique_ptr<Buffer> order)
      : PackedMatrix(view.n, view.k),
        view_(view),
        bits_(bits),
        memory_(std::move(memory)),
        order_(std::move(order)) {}

  int64_t size_bytes() const override {
    return static_cast<int64_t>(memory_->size_bytes() +
                                (order_ == nullptr ? 0 : order_->size_bytes()));
  }
  const QuantizedView& view() const { return view_; }
  int bits() const { return bits_; }
  // [in_features]: the column of x that column i of the matrix goes with; null: i.
  const int32_t* order() const {
    return order_ == nullptr ? nullptr : static_cast<const int32_t*>(order_->data());
  }

 private:
  const QuantizedView view_;
  const int bits_;
  const std::unique_ptr<Buffer> memory_;
  const std::unique_ptr<Buffer> order_;
};

// The memory that products with such matrices want besides their operands.
struct QuantizedWorkspaces {
  // Bytes of each for a step of so many rows.
  struct Sizes {
    size_t dequantized = 0;
    size_t reordered = 0;
  };
  static Sizes For(const StepLimits& limits);

  Sizes sizes;
  void* dequantized = nullptr;
  void* reordered = nullptr;
};

// The products of 16-bit weights that one of more than kQuantizedRows rows is made of: each of as
// many rows of W as `workspaces.dequantized` holds, which is their w.
std::vector<MatMulLaunch> SlicesOf(const MatMulLaunch& launch, const CudaQuantizedMatrix& matrix,
                                   const QuantizedWorkspaces& workspaces);

// The product of launch.x with `matrix`; launch.w is not looked at. products: null for the
// deterministic ones. REQUIRES: workspaces for at least so many rows.
void MultiplyQuantized(MatMulLaunch launch, const CudaQuantizedMatrix& matrix, DType dtype,
                       const QuantizedWorkspaces& workspaces, Products* products, Stream stream);

// SiluMul of the product of launch.x with `matrix`, gate above up; launch.w is not looked at.
// REQUIRES: at most kFewRows rows; launch.cols, half of the matrix's rows, is a multiple of 8.
void MultiplyQuantizedSiluMul(MatMulSiluMulLaunch launch, const CudaQuantizedMatrix& matrix,
                              DType dtype, const QuantizedWorkspaces& workspaces, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_MATRICES_QUANTIZED_MATRIX_H_
