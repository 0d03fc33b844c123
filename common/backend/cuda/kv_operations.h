// The backend's operations that write KV, and the products of latent attention, as launches.
#ifndef BATON_COMMON_BACKEND_CUDA_KV_OPERATIONS_H_
#define BATON_COMMON_BACKEND_CUDA_KV_OPERATIONS_H_

#include "common/backend/backend.h"
#include "common/backend/cuda/kernels/rope_head.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/cuda/steps/batch_upload.h"

namespace baton::backend::cuda {

// What the heads of the batch's rows are made from. Ends the process if an operand does not fit.
HeadSource HeadSourceOf(const CudaBatch& batch, const KvPool& pool, const RopeWriteArgs& args);

// REQUIRES of both: the caller has checked the pool, and asked for the positions of args.rope.
void EnqueueRopeWrite(const CudaBatch& batch, const KvPool& pool, const RopeWriteArgs& args,
                      Stream stream);
void EnqueueLatentWrite(const CudaBatch& batch, const KvPool& pool, const LatentWriteArgs& args,
                        Stream stream);
// dtype: the activations'.
void EnqueueHeadProducts(const HeadProductArgs& args, DType dtype, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KV_OPERATIONS_H_
