// KV chunks between the pool and host memory, beside the compute stream.
#ifndef BATON_COMMON_BACKEND_CUDA_KV_COPIER_H_
#define BATON_COMMON_BACKEND_CUDA_KV_COPIER_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/runtime.h"

namespace baton::backend::cuda {

// A kernel gathers chunks into contiguous staging on the device, one copy moves them to pinned
// memory, and back. One caller at a time has the staging, so that it is made once.
class CudaKvCopier final : public KvCopier {
 public:
  // Chunks that are moved at once: the most that a frame of a transfer holds, or one.
  static int ChunksAtOnce(size_t chunk_bytes);
  static size_t DeviceBytes(size_t chunk_bytes);

  // staging: DeviceBytes of device memory, which this keeps.
  static absl::StatusOr<std::unique_ptr<CudaKvCopier>> Make(const KvPool& pool,
                                                            std::unique_ptr<Buffer> staging,
                                                            Runtime& runtime);

  void Read(int layer, absl::Span<const int32_t> blocks, const Event* written,
            std::byte* host) override;
  void Write(int layer, absl::Span<const int32_t> blocks, const std::byte* host) override;

 private:
  CudaKvCopier(const KvPool& pool, std::unique_ptr<Buffer> staging, Runtime& runtime);
  static size_t IdBytes(int chunks);
  void CheckArguments(int layer, absl::Span<const int32_t> blocks) const;
  // Enqueues the ids of `count` blocks and calls launch(ids on the device).
  void SendIds(absl::Span<const int32_t> blocks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const KvPool pool_;
  const size_t chunk_bytes_;
  const int chunks_at_once_;
  Runtime& runtime_;
  const Stream stream_;

  absl::Mutex mutex_;
  const std::unique_ptr<Buffer> staging_;  // ids, then chunks
  int32_t* pinned_ids_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::byte* pinned_chunks_ ABSL_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KV_COPIER_H_
