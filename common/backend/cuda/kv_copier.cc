#include "common/backend/cuda/kv_copier.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "common/backend/cuda/arena.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
CudaKvCopier::CudaKvCopier(const KvPool& pool, std::unique_ptr<Buffer> staging, Runtime& runtime)
    : pool_(pool),
      chunk_bytes_(static_cast<size_t>(pool.layer_stride_bytes)),
      chunks_at_once_(ChunksAtOnce(chunk_bytes_)),
      runtime_(runtime),
      stream_(runtime.MakeStream()),
      staging_(std::move(staging)) {}

absl::StatusOr<std::unique_ptr<CudaKvCopier>> CudaKvCopier::Make(const KvPool& pool,
                                                                 std::unique_ptr<Buffer> staging,
                                                                 Runtime& runtime) {
  auto copier = absl::WrapUnique(new CudaKvCopier(pool, std::move(staging), runtime));
  BATON_ASSIGN_OR_RETURN(void* const ids, runtime.AllocatePinned(IdBytes(copier->chunks_at_once_)));
  BATON_ASSIGN_OR_RETURN(
      void* const chunks,
      runtime.AllocatePinned(static_cast<size_t>(copier->chunks_at_once_) * copier->chunk_bytes_));
  absl::MutexLock lock(&copier->mutex_);
  copier->pinned_ids_ = static_cast<int32_t*>(ids);
  copier->pinned_chunks_ = static_cast<std::byte*>(chunks);
  return copier;
}

void CudaKvCopier::CheckArguments(int layer, absl::Span<const int32_t> blocks) const {
  BATON_CHECK(layer >= 0 && (layer + 1) * pool_.layer_stride_bytes <= pool_.block_stride_bytes)
      << "layer " << layer;
  for (const int32_t block : blocks) {
    BATON_CHECK(block >= 0 && block < pool_.block_count) << "block " << block;
  }
}

void CudaKvCopier::SendIds(absl::Span<const int32_t> blocks) {
  std::memcpy(pinned_ids_, blocks.data(), blocks.size() * sizeof(int32_t));
  runtime_.CopyToDevice(staging_->data(), pinned_ids_, blocks.size() * sizeof(int32_t), stream_);
}

void CudaKvCopier::Read(int layer, absl::Span<const int32_t> blocks, const Event* written,
                        std::byte* host) {
  CheckArguments(layer, blocks);
  absl::MutexLock lock(&mutex_);
  if (written != nullptr) static_cast<const DeviceEvent*>(written)->Delay(stream_);
  auto* const chunks = static_cast<std::byte*>(staging_->data()) + IdBytes(chunks_at_once_);
  const auto most = static_cast<size_t>(chunks_at_once_);
  for (size_t first = 0; first < blocks.size(); first += most) {
    const absl::Span<const int32_t> part = blocks.subspan(first, most);
    SendIds(part);
    LaunchGatherKv({.base = pool_.base,
                    .block_stride_bytes = pool_.block_stride_bytes,
                    .layer_stride_bytes = pool_.layer_stride_bytes,
                    .chunk_bytes = pool_.layer_stride_bytes,
                    .first_layer = layer,
                    .blocks = static_cast<const int32_t*>(staging_->data()),
                    .staging = chunks},
                   static_cast<int>(part.size()), 1, stream_);
    runtime_.CopyToHost(pinned_chunks_, chunks, part.size() * chunk_bytes_, stream_);
    runtime_.Synchronize(stream_);
    std::memcpy(host + first * chunk_bytes_, pinned_chunks_, part.size() * chunk_bytes_);
  }
}

void CudaKvCopier::Write(int layer, absl::Span<const int32_t> blocks, const std::byte* host) {
  CheckArguments(layer, blocks);
  absl::MutexLock lock(&mutex_);
  auto* const chunks = static_cast<std::byte*>(staging_->data()) + IdBytes(chunks_at_once_);
  const auto most = static_cast<size_t>(chunks_at_once_);
  for (size_t first = 0; first < blocks.size(); first += most) {
    const absl::Span<const int32_t> part = blocks.subspan(first, most);
    SendIds(part);
    std::memcpy(pinned_chunks_, host + first * chunk_bytes_, part.size() * chunk_bytes_);
    runtime_.CopyToDevice(chunks, pinned_chunks_, part.size() * chunk_bytes_, stream_);
    LaunchScatterKv({.base = pool_.base,
                     .block_stride_bytes = pool_.block_stride_bytes,
                     .layer_stride_bytes = pool_.layer_stride_bytes,
                     .chunk_bytes = pool_.layer_stride_bytes,
                     .first_layer = layer,
                     .blocks = static_cast<const int32_t*>(staging_->data()),
                     .staging = chunks},
                    static_cast<int>(part.size()), 1, stream_);
    runtime_.Synchronize(stream_);
  }
}

}  // namespace baton::backend::cuda
