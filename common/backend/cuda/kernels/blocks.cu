#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/kernels/copy_piece.cuh"

namespace baton::backend::cuda {
namespace {

unsigned PiecesOf(int64_t size_bytes) {
  return static_cast<unsigned>((size_bytes + kPieceBytes - 1) / kPieceBytes);
}

BATON_KERNEL(kCopyThreads)
CopyBlocksKernel(CopyBlocksLaunch launch) {
  AwaitPrevious();
  const BlockPair pair = LoadGlobal(launch.pairs + BlockIndex().x);
  CopyPiece(launch.base + pair.source * launch.block_stride_bytes,
            launch.base + pair.target * launch.block_stride_bytes, launch.block_bytes,
            BlockIndex().y);
}

template <bool kGather>
BATON_KERNEL(kCopyThreads)
StageKvKernel(StageKvLaunch launch) {
  AwaitPrevious();
  const GridSize block = BlockIndex();
  std::byte* in_pool = launch.base +
                       LoadGlobal(launch.blocks + block.x) * launch.block_stride_bytes +
                       (launch.first_layer + int64_t{block.y}) * launch.layer_stride_bytes;
  std::byte* staged = launch.staging + (int64_t{block.y} * Grid().x + block.x) * launch.chunk_bytes;
  CopyPiece(kGather ? in_pool : staged, kGather ? staged : in_pool, launch.chunk_bytes, block.z);
}

BATON_KERNEL(kCopyThreads)
UploadKernel(UploadLaunch launch) {
  AwaitPrevious();
  const int64_t whole = launch.size_bytes / 16 * 16;
  CopyPiece(launch.pinned, launch.device, whole, BlockIndex().x);
  if (BlockIndex().x > 0 || ThreadIndex() * 4 >= launch.size_bytes - whole) return;
  const int64_t last = whole + ThreadIndex() * 4;
  StoreGlobal(reinterpret_cast<uint32_t*>(launch.device + last),
              LoadGlobal(reinterpret_cast<const uint32_t*>(launch.pinned + last)));
}

template <bool kGather>
void LaunchStageKv(const StageKvLaunch& launch, int blocks, int layer_count, Stream stream) {
  if (blocks == 0 || layer_count == 0) return;
  const GridSize grid = {static_cast<unsigned>(blocks), static_cast<unsigned>(layer_count),
                         PiecesOf(launch.chunk_bytes)};
  Launch(StageKvKernel<kGather>, grid, kCopyThreads, 0, stream, launch);
}

}  // namespace

void LaunchCopyBlocks(const CopyBlocksLaunch& launch, int pairs, Stream stream) {
  if (pairs == 0) return;
  Launch(CopyBlocksKernel, {static_cast<unsigned>(pairs), PiecesOf(launch.block_bytes), 1},
         kCopyThreads, 0, stream, launch);
}

void LaunchUpload(const UploadLaunch& launch, Stream stream) {
  if (launch.size_bytes == 0) return;
  Launch(UploadKernel, {PiecesOf(launch.size_bytes), 1, 1}, kCopyThreads, 0, stream, launch);
}

void LaunchGatherKv(const StageKvLaunch& launch, int blocks, int layer_count, Stream stream) {
  LaunchStageKv<true>(launch, blocks, layer_count, stream);
}

void LaunchScatterKv(const StageKvLaunch& launch, int blocks, int layer_count, Stream stream) {
  LaunchStageKv<false>(launch, blocks, layer_count, stream);
}

}  // namespace baton::backend::cuda
