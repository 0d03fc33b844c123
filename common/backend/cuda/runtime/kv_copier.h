// Copies KV between the pool and host memory, beside the compute stream.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_KV_COPIER_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_KV_COPIER_H_

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/runtime/peer_pool.h"
#include "common/backend/cuda/runtime/runtime.h"

namespace baton::backend::cuda {

// What AllocateDevice returned, with a pool in it.
struct DeviceAllocation {
  void* base = nullptr;
  size_t size_bytes = 0;
};

// A chunk is one slot of one page: a layer's K and V of a block. Read: a kernel gathers chunks into
// contiguous staging on the device, one copy moves them to the lane's pinned memory, and the CPU
// copies them to `host`. Write does the reverse. Each direction has a lane: a stream of higher
// priority than the compute stream, and staging that one copy at a time uses. Callers that wait for
// the staging with chunks of the same slots share the next copy, as far as it has room: many small
// transfers cost as few operations of the device as a large one.
class CudaKvCopier final : public KvCopier {
 public:
  // Chunks of one copy: as many as a transfer's frame holds, at least one.
  static int ChunksAtOnce(size_t chunk_bytes);
  static size_t DeviceBytes(size_t chunk_bytes);

  // staging: DeviceBytes of device memory, owned by the copier. Without the allocation that the
  // pool and the staging lie in it does not share.
  static absl::StatusOr<std::unique_ptr<CudaKvCopier>> Make(const KvPool& pool,
                                                            std::unique_ptr<Buffer> staging,
                                                            Runtime& runtime,
                                                            DeviceAllocation allocation = {});

  void Read(SlotRange slots, absl::Span<const int32_t> pages, const Event* written,
            std::byte* host) override;
  void Write(SlotRange slots, absl::Span<const int32_t> pages, const std::byte* host) override;
  bool shares() const override { return allocation_.base != nullptr && runtime_.shares_memory(); }
  absl::StatusOr<PoolHandle> Export() override;
  absl::StatusOr<std::unique_ptr<PeerPool>> OpenPeer(const PoolHandle& handle) override;

  // Parts of Reads and Writes that wait for the staging.
  int waiting() const;

 private:
  // What one copy at most moves for one caller.
  struct Part {
    SlotRange slots;
    absl::Span<const int32_t> pages;
    std::byte* to = nullptr;          // host memory of a Read
    const std::byte* from = nullptr;  // and of a Write
    bool done = false;                // guarded by the lane's mutex
  };
  // The caller that copies holds `mutex` until the stream has finished.
  struct Lane {
    Stream stream = nullptr;
    int32_t* ids = nullptr;  // `ids` and `chunks` are on the device
    std::byte* chunks = nullptr;
    int32_t* pinned_ids = nullptr;
    std::byte* pinned_chunks = nullptr;
    absl::Mutex mutex;
    mutable absl::Mutex queue_mutex;
    std::deque<Part*> queue ABSL_GUARDED_BY(queue_mutex);  // their callers wait for `mutex`
  };

  CudaKvCopier(const KvPool& pool, std::unique_ptr<Buffer> staging, Runtime& runtime,
               DeviceAllocation allocation);
  absl::Status MakeLane(std::byte* staging, Lane& lane);
  absl::Status MakeProbe(std::byte* staging);
  static size_t IdBytes(int chunks);
  // Bytes of staging that a lane needs on the device, and as many again of pinned memory.
  static size_t LaneBytes(size_t chunk_bytes);
  void CheckArguments(SlotRange slots, absl::Span<const int32_t> pages) const;
  // Calls copy(part) for parts that fit into the staging, in the order of `host`.
  template <class Byte, class Copy>
  void ForEachPart(SlotRange slots, absl::Span<const int32_t> pages, Byte* host,
                   const Copy& copy) const;
  // Returns when the part is copied: by another caller, or by copy(parts), which gets those that
  // wait with it and are copied together.
  template <class Copy>
  void CopyTogether(Lane& lane, Part& part, const Copy& copy) ABSL_LOCKS_EXCLUDED(lane.mutex);
  // Takes `part` out of the queue, and others of the same slots that the staging has room for.
  std::vector<Part*> TakeParts(Lane& lane, Part& part);
  size_t BytesOf(const Part& part) const {
    return static_cast<size_t>(part.slots.count) * part.pages.size() * chunk_bytes_;
  }
  StageKvLaunch StagingOf(const Lane& lane, SlotRange slots) const;
  // Returns the number of pages.
  int SendIds(Lane& lane, absl::Span<Part* const> parts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane.mutex);

  const KvPool pool_;
  const size_t chunk_bytes_;
  const int chunks_at_once_;
  Runtime& runtime_;
  const DeviceAllocation allocation_;
  const std::unique_ptr<Buffer> staging_;  // for each lane: ids, then chunks; the probe blocks
  Lane read_, write_;
  PeerLane peers_;
  PeerProbe probe_;  // of peers
  // The probe block that peers read, and the pinned memory it is written from.
  std::byte* own_probe_ = nullptr;
  std::byte* pinned_probe_ = nullptr;
  absl::Mutex export_mutex_;
  std::optional<uint64_t> probe_seed_ ABSL_GUARDED_BY(export_mutex_);  // none: not written yet
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_KV_COPIER_H_
