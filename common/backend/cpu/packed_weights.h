// Weights in the panel layout of kernels.h.
#ifndef BATON_COMMON_BACKEND_CPU_PACKED_WEIGHTS_H_
#define BATON_COMMON_BACKEND_CPU_PACKED_WEIGHTS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/backend/cpu/mapped_memory.h"
#include "common/backend/cpu/thread_pool.h"

namespace baton::backend {

class PackedWeights final : public PackedMatrix {
 public:
  static absl::StatusOr<std::unique_ptr<PackedWeights>> Pack(absl::Span<const HostMatrix> stacked,
                                                             DType dtype, ThreadPool& pool);
  // Dequantised when it is packed.
  static absl::StatusOr<std::unique_ptr<PackedWeights>> Pack(
      absl::Span<const QuantizedHostMatrix> stacked, DType dtype, ThreadPool& pool);

  int64_t size_bytes() const override { return panel_count() * panel_bytes(); }
  DType dtype() const { return dtype_; }
  // `in` of the panels: for bfloat16 rounded up to kBF16InMultiple, with zeros.
  int64_t padded_in() const { return padded_in_; }
  int64_t panel_count() const;
  int64_t panel_bytes() const;
  const std::byte* panel(int64_t index) const;

 private:
  PackedWeights(int64_t out_features, int64_t in_features, DType dtype);
  template <class Matrix>
  static absl::StatusOr<std::unique_ptr<PackedWeights>> PackStacked(
      absl::Span<const Matrix> stacked, DType dtype, ThreadPool& pool);
  template <class Matrix>
  void FillPanel(absl::Span<const Matrix> stacked, int64_t index);

  DType dtype_;
  int64_t padded_in_;
  MappedMemory memory_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_PACKED_WEIGHTS_H_
