// What the packed matrices of a CPU have in common.
#ifndef BATON_COMMON_BACKEND_CPU_CPU_MATRIX_H_
#define BATON_COMMON_BACKEND_CPU_CPU_MATRIX_H_

#include "common/backend/backend.h"
#include "common/backend/cpu/kernels.h"

namespace baton::backend {

class CpuMatrix : public PackedMatrix {
 public:
  // A QuantizedPanels; else a PackedWeights.
  virtual bool quantized() const = 0;
  virtual int64_t panel_bytes() const = 0;
  int64_t panel_count() const { return (out_features_ + kPanelColumns - 1) / kPanelColumns; }

 protected:
  using PackedMatrix::PackedMatrix;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_CPU_MATRIX_H_
