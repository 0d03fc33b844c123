// Computes a layer of experts: what chooses them, their products, and the sum.
#ifndef BATON_COMMON_BACKEND_CUDA_EXPERT_OPERATIONS_H_
#define BATON_COMMON_BACKEND_CUDA_EXPERT_OPERATIONS_H_

#include "common/backend/backend.h"
#include "common/backend/cuda/matrices/expert_group.h"

namespace baton::backend::cuda {

// Backend::Experts. dtype: the activations'. positions: [rows] as LaunchChooseExperts takes them,
// or null.
void EnqueueExperts(const ExpertsArgs& args, const int32_t* positions,
                    const ExpertWorkspace& workspace, DType dtype, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_EXPERT_OPERATIONS_H_
