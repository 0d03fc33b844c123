// Weights of few bits in the panel layout of common/backend/cpu/kernels.h.
#ifndef BATON_COMMON_BACKEND_CPU_QUANTIZED_PANELS_H_
#define BATON_COMMON_BACKEND_CPU_QUANTIZED_PANELS_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/cpu/cpu_matrix.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/mapped_memory.h"
#include "common/backend/cpu/thread_pool.h"

namespace baton::backend {

class QuantizedPanels final : public PanelMatrix {
 public:
  // Whether panels can hold the matrices: groups of whole blocks of 32 columns, one order of
  // columns, and with 8 bits the zero 128.
  static bool CanHold(absl::Span<const QuantizedHostMatrix> stacked);
  // Packs the matrices one below the other, as PackedWeights does. REQUIRES: CanHold(stacked).
  static absl::StatusOr<std::unique_ptr<QuantizedPanels>> Pack(
      absl::Span<const QuantizedHostMatrix> stacked, ThreadPool& pool);

  // The same of super-blocks. REQUIRES: all have the same bits, columns and columns a super-block.
  static absl::StatusOr<std::unique_ptr<QuantizedPanels>> Pack(
      absl::Span<const SuperBlockHostMatrix> stacked, ThreadPool& pool);

  int64_t panel_bytes() const override { return slice_.panel_bytes; }
  int64_t size_bytes() const override {
    return panel_count() * panel_bytes() + static_cast<int64_t>(order_.size() * sizeof(int32_t));
  }
  void ReadRow(int64_t row, float* out) const override;
  // What the matrix says of a slice: everything but x, columns, bias and out.
  QuantizedSlice SliceFrom(int64_t panel) const;
  // Column i of the panels is column order()[i] of x; empty: column i.
  absl::Span<const int32_t> order() const { return order_; }

 private:
  explicit QuantizedPanels(absl::Span<const QuantizedHostMatrix> stacked);
  explicit QuantizedPanels(absl::Span<const SuperBlockHostMatrix> stacked);
  template <class Matrix>
  absl::Status Fill(absl::Span<const Matrix> stacked, ThreadPool& pool);
  int64_t header_bytes() const;
  void ReadSuperColumn(const uint8_t* panel, int column, float* out) const;
  void FillColumn(const QuantizedHostMatrix& matrix, int64_t row, int column, uint8_t* panel) const;
  void FillColumn(const SuperBlockHostMatrix& matrix, int64_t row, int column,
                  uint8_t* panel) const;

  QuantizedSlice slice_;  // as of SliceFrom, without panels
  std::vector<int32_t> order_;
  MappedMemory memory_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_QUANTIZED_PANELS_H_
