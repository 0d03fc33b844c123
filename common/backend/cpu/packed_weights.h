// Weights in the panel layout of common/backend/cpu/kernels.h.
#ifndef BATON_COMMON_BACKEND_CPU_PACKED_WEIGHTS_H_
#define BATON_COMMON_BACKEND_CPU_PACKED_WEIGHTS_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/cpu/cpu_matrix.h"
#include "common/backend/cpu/mapped_memory.h"
#include "common/backend/cpu/thread_pool.h"

namespace baton::backend {

class PackedWeights final : public PanelMatrix {
 public:
  // Packs the matrices one below the other, as one whose output features are those of all in turn
  // (query, key and value; gate and up), for products of `compute`: float32 or bfloat16. For
  // float32, matrices that are all of one type of 16 bits keep it. REQUIRES: all have the same
  // number of input features.
  static absl::StatusOr<std::unique_ptr<PackedWeights>> Pack(absl::Span<const HostMatrix> stacked,
                                                             DType compute, ThreadPool& pool);
  // Dequantises the weights to `compute` while packing.
  static absl::StatusOr<std::unique_ptr<PackedWeights>> Pack(
      absl::Span<const QuantizedHostMatrix> stacked, DType compute, ThreadPool& pool);

  int64_t size_bytes() const override { return panel_count() * panel_bytes(); }
  DType compute() const { return compute_; }
  DType stored() const { return stored_; }
  // Input features of a panel. For products of bfloat16 padded with zeros to a multiple of
  // kBF16InMultiple.
  int64_t padded_in() const { return padded_in_; }
  int64_t panel_bytes() const override;
  const std::byte* panel(int64_t index) const;
  void ReadRow(int64_t row, float* out) const override;

 private:
  PackedWeights(int64_t out_features, int64_t in_features, DType compute, DType stored);
  template <class Matrix>
  static absl::StatusOr<std::unique_ptr<PackedWeights>> PackStacked(
      absl::Span<const Matrix> stacked, DType compute, DType stored, ThreadPool& pool);
  template <class Matrix>
  void FillPanel(absl::Span<const Matrix> stacked, int64_t index);

  DType compute_, stored_;
  int64_t padded_in_;
  MappedMemory memory_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_PACKED_WEIGHTS_H_
