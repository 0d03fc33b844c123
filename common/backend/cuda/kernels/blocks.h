// Copies of KV blocks within the device: for copy-on-write, and between the pool and the contiguous
// staging that a copy engine moves to and from the host (transfer). Bytes only.
//
// A thread block moves one piece of kPieceBytes (copy_piece.cuh).
//
// Bytes: each copied one read once and written once.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_BLOCKS_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_BLOCKS_H_

#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

inline constexpr int kCopyThreads = 128;
inline constexpr int kPieceLoads = 4;
inline constexpr int kPieceBytes = kCopyThreads * kPieceLoads * 16;

struct BlockPair {
  int32_t source, target;
};

// Whole blocks, all layers. Pointers, strides and sizes here and below are multiples of 16 bytes.
// REQUIRES: the targets differ, and none is a source.
struct CopyBlocksLaunch {
  std::byte* base;
  int64_t block_stride_bytes;
  int64_t block_bytes;
  const BlockPair* pairs;
};
void LaunchCopyBlocks(const CopyBlocksLaunch& launch, int pairs, Stream stream);

// The chunks of layers [first_layer, first_layer + layer_count) of blocks, to or from `staging`:
// [layer of the range][block of the list][chunk_bytes].
struct StageKvLaunch {
  std::byte* base;
  int64_t block_stride_bytes;
  int64_t layer_stride_bytes;
  int64_t chunk_bytes;  // of one layer of one block, or of layers that lie one behind the other
  int first_layer;
  const int32_t* blocks;
  std::byte* staging;
};
void LaunchGatherKv(const StageKvLaunch& launch, int blocks, int layer_count, Stream stream);
// REQUIRES: the blocks differ.
void LaunchScatterKv(const StageKvLaunch& launch, int blocks, int layer_count, Stream stream);

// What a step works on, from pinned host memory, which a kernel reads at its address: on the copy
// engine it would wait for the blocks of KV that are on their way (Little's law again: the loads of
// a thread are all under way before the first is used).
struct UploadLaunch {
  const std::byte* pinned;  // aligned to 16 bytes, as is `device`
  std::byte* device;
  int64_t size_bytes;  // a multiple of 4
};
void LaunchUpload(const UploadLaunch& launch, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_BLOCKS_H_
