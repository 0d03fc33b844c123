#include "common/backend/cuda/runtime/kv_copier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/runtime/arena.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
CudaKvCopier::CudaKvCopier(const KvPool& pool, std::unique_ptr<Buffer> staging, Runtime& runtime,
                           DeviceAllocation allocation)
    : pool_(pool),
      chunk_bytes_(static_cast<size_t>(pool.layer_stride_bytes)),
      chunks_at_once_(ChunksAtOnce(chunk_bytes_)),
      runtime_(runtime),
      allocation_(allocation),
      staging_(std::move(staging)) {}

absl::StatusOr<std::unique_ptr<CudaKvCopier>> CudaKvCopier::Make(const KvPool& pool,
                                                                 std::unique_ptr<Buffer> staging,
                                                                 Runtime& runtime,
                                                                 DeviceAllocation allocation) {
  auto copier = absl::WrapUnique(new CudaKvCopier(pool, std::move(staging), runtime, allocation));
  auto* const device = static_cast<std::byte*>(copier->staging_->data());
  BATON_RETURN_IF_ERROR(copier->MakeLane(device, copier->read_));
  BATON_RETURN_IF_ERROR(copier->MakeLane(device + LaneBytes(copier->chunk_bytes_), copier->write_));
  return copier;
}

absl::Status CudaKvCopier::MakeLane(std::byte* staging, Lane& lane) {
  const size_t id_bytes = IdBytes(chunks_at_once_);
  BATON_ASSIGN_OR_RETURN(void* const pinned, runtime_.AllocatePinned(LaneBytes(chunk_bytes_)));
  lane.stream = runtime_.MakeUrgentStream();
  lane.ids = reinterpret_cast<int32_t*>(staging);
  lane.chunks = staging + id_bytes;
  lane.pinned_ids = static_cast<int32_t*>(pinned);
  lane.pinned_chunks = static_cast<std::byte*>(pinned) + id_bytes;
  return absl::OkStatus();
}

void CudaKvCopier::CheckArguments(int layer, absl::Span<const int32_t> blocks) const {
  BATON_CHECK(layer >= 0 && (layer + 1) * pool_.layer_stride_bytes <= pool_.block_stride_bytes)
      << "layer " << layer;
  for (const int32_t block : blocks) {
    BATON_CHECK(block >= 0 && block < pool_.block_count) << "block " << block;
  }
}

void CudaKvCopier::SendIds(Lane& lane, absl::Span<const int32_t> blocks) {
  std::memcpy(lane.pinned_ids, blocks.data(), blocks.size() * sizeof(int32_t));
  runtime_.CopyToDevice(lane.ids, lane.pinned_ids, blocks.size() * sizeof(int32_t), lane.stream);
}

void CudaKvCopier::Read(int layer, absl::Span<const int32_t> blocks, const Event* written,
                        std::byte* host) {
  CheckArguments(layer, blocks);
  // Not under the lock: what others read may be there already.
  if (written != nullptr) written->Wait();
  absl::MutexLock lock(&read_.mutex);
  const auto most = static_cast<size_t>(chunks_at_once_);
  for (size_t first = 0; first < blocks.size(); first += most) {
    const absl::Span<const int32_t> part = blocks.subspan(first, most);
    SendIds(read_, part);
    LaunchGatherKv({.base = pool_.base,
                    .block_stride_bytes = pool_.block_stride_bytes,
                    .layer_stride_bytes = pool_.layer_stride_bytes,
                    .chunk_bytes = pool_.layer_stride_bytes,
                    .first_layer = layer,
                    .blocks = read_.ids,
                    .staging = read_.chunks},
                   static_cast<int>(part.size()), 1, read_.stream);
    const size_t part_bytes = part.size() * chunk_bytes_;
    runtime_.CopyToHost(read_.pinned_chunks, read_.chunks, part_bytes, read_.stream);
    runtime_.Record(read_.stream)->Wait();
    std::memcpy(host + first * chunk_bytes_, read_.pinned_chunks, part_bytes);
  }
}

void CudaKvCopier::Write(int layer, absl::Span<const int32_t> blocks, const std::byte* host) {
  CheckArguments(layer, blocks);
  absl::MutexLock lock(&write_.mutex);
  const auto most = static_cast<size_t>(chunks_at_once_);
  for (size_t first = 0; first < blocks.size(); first += most) {
    const absl::Span<const int32_t> part = blocks.subspan(first, most);
    SendIds(write_, part);
    const size_t part_bytes = part.size() * chunk_bytes_;
    std::memcpy(write_.pinned_chunks, host + first * chunk_bytes_, part_bytes);
    runtime_.CopyToDevice(write_.chunks, write_.pinned_chunks, part_bytes, write_.stream);
    LaunchScatterKv({.base = pool_.base,
                     .block_stride_bytes = pool_.block_stride_bytes,
                     .layer_stride_bytes = pool_.layer_stride_bytes,
                     .chunk_bytes = pool_.layer_stride_bytes,
                     .first_layer = layer,
                     .blocks = write_.ids,
                     .staging = write_.chunks},
                    static_cast<int>(part.size()), 1, write_.stream);
    runtime_.Record(write_.stream)->Wait();
  }
}

absl::StatusOr<PoolHandle> CudaKvCopier::Export() const {
  BATON_CHECK(shares()) << "this pool is not shared";
  PoolHandle handle;
  BATON_ASSIGN_OR_RETURN(handle.memory, runtime_.ExportMemory(allocation_.base));
  handle.device = runtime_.properties().uuid;
  handle.allocation_bytes = allocation_.size_bytes;
  handle.offset =
      static_cast<uint64_t>(pool_.base - static_cast<const std::byte*>(allocation_.base));
  handle.block_count = static_cast<uint64_t>(pool_.block_count);
  handle.block_stride_bytes = static_cast<uint64_t>(pool_.block_stride_bytes);
  handle.layer_stride_bytes = static_cast<uint64_t>(pool_.layer_stride_bytes);
  return handle;
}

absl::StatusOr<std::unique_ptr<PeerPool>> CudaKvCopier::OpenPeer(const PoolHandle& handle) {
  BATON_CHECK(shares()) << "this device opens no other's memory";
  return CudaPeerPool::Open(handle, pool_, runtime_, peers_);
}

}  // namespace baton::backend::cuda
