// Attention of heads of 512 dims (kWidestHead), and of no others, in the two uses that attention.h
// has. They do not fit the kernels there: registers hold neither the queries of 512 dims nor a row
// tile's sums, and a T4's shared memory does not hold a piece of K.
//
// A block of eight warps takes tokens in pieces of 32. A warp has the scores of 16 of them over a
// quarter of the dims, which go through shared memory, where all warps add the four quarters and
// weigh the tokens alike; then it has the sums of 64 dims. So no two warps multiply with the same
// elements, and K and V go from the pool to registers, those of the next piece of K while this one
// is weighed. Queries lie in shared memory.
//
// A piece's weights are relative to the greatest score of the split so far (FlashAttention-2, arXiv
// 2307.08691), so that sums need no second place beside the products. Splits of 256 tokens are
// folded in ascending order. A piece that a row does not see changes none of its bits, so both uses
// give a row the same ones:
// - split: a block computes one split of one row tile; the last one folds them.
// - tile: many rows. A block computes all splits of two row tiles, which share the loads.
//
// Shared memory of a block: 24 KiB and 48 KiB.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_WIDE_ATTENTION_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_WIDE_ATTENTION_H_

#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// LaunchAttentionSplit and LaunchAttentionTile call these. REQUIRES: head_dim is kWidestHead.
void LaunchWideSplit(const AttentionLaunch& launch, DType dtype, int blocks, Stream stream);
void LaunchWideTile(const AttentionLaunch& launch, DType dtype, int items, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_WIDE_ATTENTION_H_
