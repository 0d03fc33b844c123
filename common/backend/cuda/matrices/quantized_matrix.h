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
#include "common/backend/cuda/matrices/matrix_memory.h"
#include "common/backend/cuda/products/products.h"

namespace baton::backend::cuda {

// Packed as kernels/quantized.h says.
class CudaQuantizedMatrix final : public PackedMatrix {
 public:
  // UNIMPLEMENTED (UNSUPPORTED_MODEL) if in_features is not a multiple of 8, a group (unless it has
  // all columns) is not a power of two of at least 32, or the parts differ in the order of columns.
  static absl::StatusOr<std::unique_ptr<PackedMatrix>> Make(
      absl::Span<const QuantizedHostMatrix> stacked, DType dtype, MatrixMemory& memory);
  CudaQuantizedMatrix(const QuantizedView& view, int bits, std::unique_ptr<Buffer> memory,
                      bool on_host, std::unique_ptr<Buffer> order)
      : PackedMatrix(view.n, view.k),
        view_(view),
        bits_(bits),
        memory_(std::move(memory)),
        on_host_(on_host),
        order_(std::move(order)) {}

  int64_t size_bytes() const override {
    return static_cast<int64_t>(memory_->size_bytes() +
                                (order_ == nullptr ? 0 : order_->size_bytes()));
  }
  const QuantizedView& view() const { return view_; }
  int bits() const { return bits_; }  // or kFp4
  bool on_host() const { return on_host_; }
  // [in_features]: the column of x that is multiplied by column i of the matrix; null: i.
  const int32_t* order() const {
    return order_ == nullptr ? nullptr : static_cast<const int32_t*>(order_->data());
  }

 private:
  const QuantizedView view_;
  const int bits_;
  const std::unique_ptr<Buffer> memory_;
  const bool on_host_;
  const std::unique_ptr<Buffer> order_;
};

// The workspaces of products with such matrices.
struct QuantizedWorkspaces {
  // Bytes of each.
  struct Sizes {
    size_t dequantized = 0;
    size_t reordered = 0;
  };
  static Sizes For(const StepLimits& limits);

  QuantizedWorkspaces() = default;
  // Whose memory is still to come.
  QuantizedWorkspaces(const Sizes& bytes, int kernel_capability)
      : sizes(bytes), tile_rows(QuantizedTileRows(kernel_capability)) {}

  Sizes sizes;
  void* dequantized = nullptr;  // also for the sums of slices
  void* reordered = nullptr;
  int tile_rows = kSmallTileRows;  // as QuantizedTileRows says, or fewer
};

// The 16-bit products that make up one of more than kQuantizedRows rows: each of as many rows of W
// as fit into `workspaces.dequantized`, which is their w.
std::vector<MatMulLaunch> SlicesOf(const MatMulLaunch& launch, const CudaQuantizedMatrix& matrix,
                                   const QuantizedWorkspaces& workspaces);

// The product of launch.x with `matrix`; launch.w is ignored. products: null for the deterministic
// ones. REQUIRES: workspaces for at least so many rows.
void MultiplyQuantized(MatMulLaunch launch, const CudaQuantizedMatrix& matrix, DType dtype,
                       const QuantizedWorkspaces& workspaces, Products* products, Stream stream);

// Gates the product of launch.x with `matrix`, gate above up; launch.w is ignored.
// REQUIRES: workspaces for at least so many rows; launch.cols, half of the matrix's rows, is a
// multiple of 8.
void MultiplyQuantizedGated(MatMulGatedLaunch launch, const CudaQuantizedMatrix& matrix,
                            DType dtype, const QuantizedWorkspaces& workspaces, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_MATRICES_QUANTIZED_MATRIX_H_
