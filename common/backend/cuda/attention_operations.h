// The backend's operations of attention, as launches.
#ifndef BATON_COMMON_BACKEND_CUDA_ATTENTION_OPERATIONS_H_
#define BATON_COMMON_BACKEND_CUDA_ATTENTION_OPERATIONS_H_

#include "common/backend/backend.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/cuda/steps/batch_upload.h"

namespace baton::backend::cuda {

// Device memory of the kernels: see AttentionLaunch.
struct AttentionWorkspace {
  float* partials = nullptr;
  unsigned* counters = nullptr;
  float* totals = nullptr;
};

// dtype: the activations'. REQUIRES, here and below: the caller has checked the pool.
void EnqueueAttention(const CudaBatch& batch, const KvPool& pool, const AttentionArgs& args,
                      DType dtype, const AttentionWorkspace& workspace,
                      const DeviceProperties& device, Stream stream);

// Whether Backend::RopeWriteAttend is one launch: of a padded batch, which has one row a sequence
// and all of whose attention the split kernel computes, with heads that SplitFuses.
bool FusesRopeWrite(const CudaBatch& batch, const KvPool& pool, const AttentionArgs& args);
// That launch. REQUIRES: FusesRopeWrite; the caller has asked for the positions of write.rope.
void EnqueueRopeWriteAttend(const CudaBatch& batch, const KvPool& pool, const RopeWriteArgs& write,
                            const AttentionArgs& args, DType dtype,
                            const AttentionWorkspace& workspace, const DeviceProperties& device,
                            Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_ATTENTION_OPERATIONS_H_
