// Copies between KV pools in device memory and the host, or another process's pool.
#ifndef BATON_COMMON_BACKEND_KV_COPIER_H_
#define BATON_COMMON_BACKEND_KV_COPIER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::backend {

class Event;

// Bytes of a probe block: random ones that the exporter of a pool writes beside it, and that a
// reader compares before it reads KV. No checksum covers what a device reads from another's memory,
// so this is what shows that it reads the exporter's.
inline constexpr size_t kProbeBytes = 4096;

// How another process of the host opens a KV pool in device memory (CUDA IPC). It goes through a
// socket as it is.
struct PoolHandle {
  std::array<uint8_t, 64> memory = {};  // the driver's handle of the allocation the pool lies in
  std::array<uint8_t, 16> device = {};  // UUID of the GPU
  uint64_t allocation_bytes = 0;
  uint64_t offset = 0;  // of the pool in the allocation
  uint64_t block_count = 0;
  uint64_t block_stride_bytes = 0;  // these as in KvPool
  uint64_t layer_stride_bytes = 0;
  uint64_t probe_offset = 0;  // of the probe block in the allocation
  uint64_t probe_seed = 0;    // of the random bytes in it
};

// Slots of a page (KvPool::Chunk): [first, first + count).
struct SlotRange {
  int first = 0;
  int count = 1;
};

// Another worker's KV pool in device memory, opened here. The destructor closes it.
//
// Thread-safe. The KvCopier that opened it outlives it.
class PeerPool {
 public:
  virtual ~PeerPool() = default;
  // Copies the chunks of the slots on the device: page theirs[i] of the peer's pool to page
  // ours[i] of this worker's. Returns when nothing of it writes any more, also with an error:
  // UNAVAILABLE (SHARED_MEMORY), and then from every later call. REQUIRES: slots and pages are in
  // the pools; `ours` differ; no step reads or writes `ours` meanwhile.
  virtual absl::Status Copy(SlotRange slots, absl::Span<const int32_t> theirs,
                            absl::Span<const int32_t> ours) = 0;
};

// Copies KV chunks of a pool that the host cannot address.
//
// Thread-safe. Copies run beside the compute stream: a call waits for its own copy and, for Read,
// for `written`. The backend and the pool outlive it.
class KvCopier {
 public:
  virtual ~KvCopier() = default;
  // Copy the chunks of the slots to and from host memory, [page][slot][layer_stride_bytes]: a
  // page's slots lie one behind the other in the pool, too. Both return when the copy is done. One
  // call takes less time than several: each is an operation of the device. REQUIRES: slots and
  // pages are in the pool; the pages of one Write differ. written: the event after which the chunks
  // no longer change; null: they no longer do.
  virtual void Read(SlotRange slots, absl::Span<const int32_t> pages, const Event* written,
                    std::byte* host) = 0;
  // REQUIRES: no step, CopyBlocks or CopyToDevice that reads or writes the blocks runs meanwhile.
  virtual void Write(SlotRange slots, absl::Span<const int32_t> pages, const std::byte* host) = 0;

  // Whether the device knows Export and OpenPeer.
  virtual bool shares() const { return false; }
  // For other processes of the host, which may then read the pool as long as this process keeps it.
  // The probe block is written when it returns. FAILED_PRECONDITION (SHARED_MEMORY) if the driver
  // refuses.
  virtual absl::StatusOr<PoolHandle> Export() {
    return absl::UnimplementedError("this device's memory cannot be shared");
  }
  // Opens the pool that another process has exported, and reads its probe block, so that the first
  // copy of KV finds everything set up. FAILED_PRECONDITION (SHARED_MEMORY), before anything is
  // mapped, if the handle does not describe a pool with this one's strides inside its allocation,
  // or this device cannot reach that one; and if the driver refuses the handle. DATA_LOSS
  // (SHARED_MEMORY) if the probe block has other bytes, DEADLINE_EXCEEDED (SHARED_MEMORY) if
  // reading it does not end.
  virtual absl::StatusOr<std::unique_ptr<PeerPool>> OpenPeer(const PoolHandle& handle) {
    return absl::UnimplementedError("this device opens no other's memory");
  }
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_KV_COPIER_H_
