// The backend's operations of recurrent layers, as launches.
#ifndef BATON_COMMON_BACKEND_CUDA_RECURRENCE_OPERATIONS_H_
#define BATON_COMMON_BACKEND_CUDA_RECURRENCE_OPERATIONS_H_

#include "common/backend/backend.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/cuda/steps/batch_upload.h"
#include "common/backend/cuda/steps/state_spots.h"

namespace baton::backend::cuda {

// REQUIRES of those with a batch: the caller has checked the pool.
void EnqueueShortConv(const CudaBatch& batch, const KvPool& pool, StateSpots& spots,
                      const ShortConvArgs& args, Stream stream);
void EnqueueGatedDelta(const CudaBatch& batch, const KvPool& pool, StateSpots& spots,
                       const GatedDeltaArgs& args, Stream stream);
void EnqueueStateSpace(const CudaBatch& batch, const KvPool& pool, StateSpots& spots,
                       const StateSpaceArgs& args, Stream stream);
void EnqueueGatedNorm(const GatedNormArgs& args, Stream stream);
void EnqueueGateOutput(const OutputGateArgs& args, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RECURRENCE_OPERATIONS_H_
