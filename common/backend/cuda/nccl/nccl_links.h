// Links between GPUs by NCCL (common/backend/device_link.h).
//
// A link has a stream, a place in pinned memory and one on the device for block ids, and staging
// for one operation: chunks are gathered into it by a kernel and sent in one piece, or received in
// one piece and scattered. So a communicator never touches the pool.
#ifndef BATON_COMMON_BACKEND_CUDA_NCCL_NCCL_LINKS_H_
#define BATON_COMMON_BACKEND_CUDA_NCCL_NCCL_LINKS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/nccl/nccl_library.h"
#include "common/backend/cuda/runtime/runtime.h"

namespace baton::backend::cuda {

class NcclLinks final : public DeviceLinks, public std::enable_shared_from_this<NcclLinks> {
 public:
  static constexpr int kMostLinks = 8;

  // Allocates the staging of all links, outside of the backend's arena. RESOURCE_EXHAUSTED. Call
  // before the pool is in use.
  // `runtime`, the library and the pool's memory outlive the links.
  static absl::StatusOr<std::shared_ptr<NcclLinks>> Make(const KvPool& pool, Runtime& runtime,
                                                         NcclLibrary& nccl);

  std::string device() const override;  // the UUID in hexadecimal digits
  int version() const override { return nccl_.version(); }
  int most_chunks() const override { return most_chunks_; }
  int most_links() const override { return kMostLinks; }
  absl::StatusOr<std::string> MakeId() override;
  absl::StatusOr<std::unique_ptr<DeviceLink>> Connect(const std::string& id, int rank) override;

 private:
  class Link;
  struct Slot {
    Stream stream = nullptr;
    int32_t* ids = nullptr;  // on the device, as is `staging`
    std::byte* staging = nullptr;
    int32_t* pinned_ids = nullptr;
  };

  NcclLinks(const KvPool& pool, Runtime& runtime, NcclLibrary& nccl);
  absl::Status Allocate();

  const KvPool pool_;
  const size_t chunk_bytes_;
  const int most_chunks_;
  Runtime& runtime_;
  NcclLibrary& nccl_;
  absl::Mutex mutex_;
  std::vector<Slot> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_NCCL_NCCL_LINKS_H_
