// Another worker's KV pool, opened through CUDA IPC.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_PEER_POOL_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_PEER_POOL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/runtime/runtime.h"

namespace baton::backend::cuda {

// The stream of a worker's copies from all its peers.
struct PeerLane {
  absl::Mutex mutex;
  Stream stream ABSL_GUARDED_BY(mutex) = nullptr;  // made with the first peer
};

// The bytes of a probe block.
std::vector<uint64_t> ProbePattern(uint64_t seed);

// Where the bytes of peers' probe blocks go, one at a time. Nothing else is there, and the stream
// is not the lane's: a read that does not end holds up no other.
struct PeerProbe {
  std::byte* device = nullptr;  // kProbeBytes each
  std::byte* pinned = nullptr;
  absl::Mutex mutex;
  Stream stream ABSL_GUARDED_BY(mutex) = nullptr;  // made with the first peer
  bool hangs ABSL_GUARDED_BY(mutex) = false;       // a read has not ended in time
};

// Copies go from pool to pool without staging: one call of the runtime for each run of blocks that
// are consecutive on both sides, then one wait.
class CudaPeerPool final : public PeerPool {
 public:
  // As KvCopier::OpenPeer. ours: the pool to copy to. runtime, lane and probe outlive the result.
  static absl::StatusOr<std::unique_ptr<CudaPeerPool>> Open(const PoolHandle& handle,
                                                            const KvPool& ours, Runtime& runtime,
                                                            PeerLane& lane, PeerProbe& probe);
  ~CudaPeerPool() override;

  absl::Status Copy(SlotRange slots, absl::Span<const int32_t> theirs,
                    absl::Span<const int32_t> ours) override;

 private:
  CudaPeerPool(const PoolHandle& handle, const KvPool& ours, Runtime& runtime, PeerLane& lane,
               void* memory);
  absl::Status Enqueue(SlotRange slots, absl::Span<const int32_t> theirs,
                       absl::Span<const int32_t> ours) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane_.mutex);
  // Reads the probe block and compares it.
  absl::Status Prove(const PoolHandle& handle, PeerProbe& probe);

  const KvPool ours_;
  Runtime& runtime_;
  PeerLane& lane_;
  void* const memory_;           // the peer's allocation
  const std::byte* const base_;  // of its pool
  const int block_count_;        // of its pool
  std::atomic<bool> failed_{false};
  bool probe_hangs_ = false;  // the memory stays open: a copy may still read it
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_PEER_POOL_H_
