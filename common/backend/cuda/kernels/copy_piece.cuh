// A thread block's share of a copy: every thread issues kPieceLoads loads of 16 bytes before it
// stores, so that few thread blocks keep a memory or a link busy (Little's law).
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_COPY_PIECE_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_COPY_PIECE_CUH_

#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// Piece number `piece` of size_bytes: load i of thread t is 16-byte place i * threads + t of it.
BATON_DEVICE void CopyPiece(const std::byte* from, std::byte* to, int64_t size_bytes,
                            unsigned piece) {
  const int64_t first = int64_t{piece} * kPieceBytes + ThreadIndex() * 16;
  Vec16 v[kPieceLoads];
  BATON_UNROLL for (int i = 0; i < kPieceLoads; ++i) {
    const int64_t at = first + i * (kCopyThreads * 16);
    if (at < size_bytes) v[i] = Load16(from + at);
  }
  BATON_UNROLL for (int i = 0; i < kPieceLoads; ++i) {
    const int64_t at = first + i * (kCopyThreads * 16);
    if (at < size_bytes) Store16(to + at, v[i]);
  }
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_COPY_PIECE_CUH_
