// Device memory for a tensor of the largest step; its shape is one of Workspaces.
#ifndef BATON_COMMON_MODEL_WORKSPACE_H_
#define BATON_COMMON_MODEL_WORKSPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/backend/backend.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/model/device_memory.h"

namespace baton::model {

class Workspace {
 public:
  // RESOURCE_EXHAUSTED, as Backend::Allocate. A shape without rows takes nothing.
  absl::Status Allocate(const Workspaces::Shape& shape, backend::Backend& backend) {
    if (shape.rows == 0) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(memory_, backend.Allocate(static_cast<size_t>(shape.size_bytes())));
    capacity_ = shape.rows * shape.cols;
    dtype_ = shape.dtype;
    return absl::OkStatus();
  }
  // Empty where the backend does without the workspace.
  backend::Tensor View(int64_t rows, int64_t cols) const {
    if (memory_ == nullptr) return {};
    BATON_CHECK_LE(rows * cols, capacity_);
    return {memory_->data(), dtype_, rows, cols, cols};
  }

 private:
  std::unique_ptr<backend::Buffer> memory_;
  int64_t capacity_ = 0;
  backend::DType dtype_ = backend::DType::kF32;
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_WORKSPACE_H_
