// The sizes of a step's workspaces in the arena: host arithmetic.
#ifndef BATON_COMMON_BACKEND_CUDA_PLAN_WORKSPACE_SIZES_H_
#define BATON_COMMON_BACKEND_CUDA_PLAN_WORKSPACE_SIZES_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/matrices/quantized_matrix.h"
#include "common/backend/cuda/steps/attention_plan.h"

namespace baton::backend::cuda {

// UNIMPLEMENTED (UNSUPPORTED_MODEL), naming the field, if no kernel supports such a step.
absl::Status CheckSupported(const StepLimits& limits);

inline constexpr int kCopiedBlocksAtOnce = 1024;

// Bytes. REQUIRES: CheckSupported(limits).
struct WorkspaceSizes {
  static WorkspaceSizes For(const StepLimits& limits, DType activation, size_t products_bytes);

  std::vector<AttentionRoom> rooms;  // of each of limits.heads()
  size_t upload, partials, counters, totals, sampler, products, copied_blocks, copier;
  QuantizedWorkspaces::Sizes quantized;
  size_t experts;
  size_t state_spots;

  // Each rounded up to the arena's alignment.
  size_t total() const;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PLAN_WORKSPACE_SIZES_H_
