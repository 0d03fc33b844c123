// What the packed matrices of a CPU have in common.
#ifndef BATON_COMMON_BACKEND_CPU_CPU_MATRIX_H_
#define BATON_COMMON_BACKEND_CPU_CPU_MATRIX_H_

#include <memory>
#include <utility>
#include <vector>

#include "common/backend/backend.h"
#include "common/backend/cpu/kernels.h"

namespace baton::backend {

class CpuMatrix : public PackedMatrix {
 public:
  // A PackedWeights, a QuantizedPanels, or a StackedMatrix.
  enum class Form { kFloat, kQuantized, kStacked };
  Form form() const { return form_; }

 protected:
  CpuMatrix(Form form, int64_t out_features, int64_t in_features)
      : PackedMatrix(out_features, in_features), form_(form) {}

 private:
  const Form form_;
};

// In panels of kPanelColumns output features.
class PanelMatrix : public CpuMatrix {
 public:
  virtual int64_t panel_bytes() const = 0;
  // Output feature `row`, as float32 without loss: [in_features].
  virtual void ReadRow(int64_t row, float* out) const = 0;
  int64_t panel_count() const { return (out_features_ + kPanelColumns - 1) / kPanelColumns; }

 protected:
  using CpuMatrix::CpuMatrix;
};

// Matrices of different forms, one below the other: a product is that of each.
class StackedMatrix final : public CpuMatrix {
 public:
  // REQUIRES: parts have one number of input features, and no order of columns.
  explicit StackedMatrix(std::vector<std::unique_ptr<PanelMatrix>> parts)
      : CpuMatrix(Form::kStacked, 0, parts.front()->in_features()), parts_(std::move(parts)) {
    for (const auto& part : parts_) out_features_ += part->out_features();
  }
  int64_t size_bytes() const override {
    int64_t bytes = 0;
    for (const auto& part : parts_) bytes += part->size_bytes();
    return bytes;
  }
  const std::vector<std::unique_ptr<PanelMatrix>>& parts() const { return parts_; }

 private:
  std::vector<std::unique_ptr<PanelMatrix>> parts_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_CPU_MATRIX_H_
