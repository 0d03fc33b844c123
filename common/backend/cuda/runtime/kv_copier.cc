#include "common/backend/cuda/runtime/kv_copier.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/runtime/arena.h"
#include "common/base/check.h"
#include "common/base/random_id.h"
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
  if (copier->shares()) {
    BATON_RETURN_IF_ERROR(copier->MakeProbe(device + 2 * LaneBytes(copier->chunk_bytes_)));
  }
  return copier;
}

absl::Status CudaKvCopier::MakeProbe(std::byte* staging) {
  BATON_ASSIGN_OR_RETURN(void* const pinned, runtime_.AllocatePinned(2 * kProbeBytes));
  own_probe_ = staging;
  probe_.device = staging + kProbeBytes;
  pinned_probe_ = static_cast<std::byte*>(pinned);
  probe_.pinned = pinned_probe_ + kProbeBytes;
  return absl::OkStatus();
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

void CudaKvCopier::CheckArguments(SlotRange slots, absl::Span<const int32_t> pages) const {
  BATON_CHECK(slots.first >= 0 && slots.count > 0 &&
              (slots.first + slots.count) * pool_.layer_stride_bytes <= pool_.block_stride_bytes)
      << slots.count << " slots from " << slots.first << " on";
  for (const int32_t page : pages) {
    BATON_CHECK(page >= 0 && page < pool_.block_count) << "page " << page;
  }
}

int CudaKvCopier::SendIds(Lane& lane, absl::Span<Part* const> parts) {
  size_t count = 0;
  for (const Part* part : parts) {
    std::memcpy(lane.pinned_ids + count, part->pages.data(), part->pages.size() * sizeof(int32_t));
    count += part->pages.size();
  }
  runtime_.CopyToDevice(lane.ids, lane.pinned_ids, count * sizeof(int32_t), lane.stream);
  return static_cast<int>(count);
}

std::vector<CudaKvCopier::Part*> CudaKvCopier::TakeParts(Lane& lane, Part& part) {
  std::vector<Part*> taken = {&part};
  size_t chunks = static_cast<size_t>(part.slots.count) * part.pages.size();
  absl::MutexLock lock(&lane.queue_mutex);
  std::erase_if(lane.queue, [&](Part* other) {
    if (other == &part) return true;
    const size_t more = static_cast<size_t>(other->slots.count) * other->pages.size();
    if (other->slots.first != part.slots.first || other->slots.count != part.slots.count ||
        chunks + more > static_cast<size_t>(chunks_at_once_)) {
      return false;
    }
    chunks += more;
    taken.push_back(other);
    return true;
  });
  return taken;
}

template <class Copy>
void CudaKvCopier::CopyTogether(Lane& lane, Part& part, const Copy& copy) {
  {
    absl::MutexLock lock(&lane.queue_mutex);
    lane.queue.push_back(&part);
  }
  absl::MutexLock lock(&lane.mutex);
  if (part.done) return;
  const std::vector<Part*> parts = TakeParts(lane, part);
  copy(parts);
  for (Part* copied : parts) copied->done = true;
}

int CudaKvCopier::waiting() const {
  int count = 0;
  for (const Lane* lane : {&read_, &write_}) {
    absl::MutexLock lock(&lane->queue_mutex);
    count += static_cast<int>(lane->queue.size());
  }
  return count;
}

template <class Byte, class Copy>
void CudaKvCopier::ForEachPart(SlotRange slots, absl::Span<const int32_t> pages, Byte* host,
                               const Copy& copy) const {
  // Some pages, of all slots if the staging has room for those of one.
  const int slots_at_once = std::min(slots.count, chunks_at_once_);
  const auto pages_at_once = static_cast<size_t>(chunks_at_once_ / slots_at_once);
  for (size_t first = 0; first < pages.size(); first += pages_at_once) {
    const absl::Span<const int32_t> of_part = pages.subspan(first, pages_at_once);
    for (int slot = 0; slot < slots.count; slot += slots_at_once) {
      Part part;
      part.slots = {slots.first + slot, std::min(slots_at_once, slots.count - slot)};
      part.pages = of_part;
      copy(part, host);
      host += BytesOf(part);
    }
  }
}

StageKvLaunch CudaKvCopier::StagingOf(const Lane& lane, SlotRange slots) const {
  // The slots of a page as one chunk.
  return {.base = pool_.base,
          .block_stride_bytes = pool_.block_stride_bytes,
          .layer_stride_bytes = pool_.layer_stride_bytes,
          .chunk_bytes = slots.count * pool_.layer_stride_bytes,
          .first_layer = slots.first,
          .blocks = lane.ids,
          .staging = lane.chunks};
}

void CudaKvCopier::Read(SlotRange slots, absl::Span<const int32_t> pages, const Event* written,
                        std::byte* host) {
  CheckArguments(slots, pages);
  if (pages.empty()) return;
  // Not under the lock: what others read may be there already.
  if (written != nullptr) written->Wait();
  ForEachPart(slots, pages, host, [this](Part& part, std::byte* to) {
    part.to = to;
    CopyTogether(read_, part, [this](absl::Span<Part* const> parts) {
      read_.mutex.AssertHeld();
      const int page_count = SendIds(read_, parts);
      LaunchGatherKv(StagingOf(read_, parts[0]->slots), page_count, 1, read_.stream);
      size_t bytes = 0;
      for (const Part* each : parts) bytes += BytesOf(*each);
      runtime_.CopyToHost(read_.pinned_chunks, read_.chunks, bytes, read_.stream);
      runtime_.Record(read_.stream)->Wait();
      const std::byte* from = read_.pinned_chunks;
      for (const Part* each : parts) {
        std::memcpy(each->to, from, BytesOf(*each));
        from += BytesOf(*each);
      }
    });
  });
}

void CudaKvCopier::Write(SlotRange slots, absl::Span<const int32_t> pages, const std::byte* host) {
  CheckArguments(slots, pages);
  if (pages.empty()) return;
  ForEachPart(slots, pages, host, [this](Part& part, const std::byte* from) {
    part.from = from;
    CopyTogether(write_, part, [this](absl::Span<Part* const> parts) {
      write_.mutex.AssertHeld();
      const int page_count = SendIds(write_, parts);
      std::byte* to = write_.pinned_chunks;
      for (const Part* each : parts) {
        std::memcpy(to, each->from, BytesOf(*each));
        to += BytesOf(*each);
      }
      runtime_.CopyToDevice(write_.chunks, write_.pinned_chunks,
                            static_cast<size_t>(to - write_.pinned_chunks), write_.stream);
      LaunchScatterKv(StagingOf(write_, parts[0]->slots), page_count, 1, write_.stream);
      runtime_.Record(write_.stream)->Wait();
    });
  });
}

absl::StatusOr<PoolHandle> CudaKvCopier::Export() {
  BATON_CHECK(shares()) << "this pool is not shared";
  const auto* const allocation = static_cast<const std::byte*>(allocation_.base);
  BATON_CHECK(own_probe_ >= allocation &&
              own_probe_ + kProbeBytes <= allocation + allocation_.size_bytes)
      << "the staging is in another allocation";
  PoolHandle handle;
  BATON_ASSIGN_OR_RETURN(handle.memory, runtime_.ExportMemory(allocation_.base));
  handle.device = runtime_.properties().uuid;
  handle.allocation_bytes = allocation_.size_bytes;
  handle.offset = static_cast<uint64_t>(pool_.base - allocation);
  handle.block_count = static_cast<uint64_t>(pool_.block_count);
  handle.block_stride_bytes = static_cast<uint64_t>(pool_.block_stride_bytes);
  handle.layer_stride_bytes = static_cast<uint64_t>(pool_.layer_stride_bytes);
  handle.probe_offset = static_cast<uint64_t>(own_probe_ - allocation);
  absl::MutexLock lock(&export_mutex_);
  if (!probe_seed_) {
    const uint64_t seed = RandomId64();
    std::memcpy(pinned_probe_, ProbePattern(seed).data(), kProbeBytes);
    absl::MutexLock writing(&write_.mutex);
    runtime_.CopyToDevice(own_probe_, pinned_probe_, kProbeBytes, write_.stream);
    runtime_.Record(write_.stream)->Wait();
    probe_seed_ = seed;
  }
  handle.probe_seed = *probe_seed_;
  return handle;
}

absl::StatusOr<std::unique_ptr<PeerPool>> CudaKvCopier::OpenPeer(const PoolHandle& handle) {
  BATON_CHECK(shares()) << "this device opens no other's memory";
  return CudaPeerPool::Open(handle, pool_, runtime_, peers_, probe_);
}

}  // namespace baton::backend::cuda
