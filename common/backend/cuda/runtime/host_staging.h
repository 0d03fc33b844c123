// Copies between pageable host memory and the device, through pinned memory allocated once.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_HOST_STAGING_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_HOST_STAGING_H_

#include <array>
#include <cstddef>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/backend/cuda/runtime/runtime.h"

namespace baton::backend::cuda {

// Two halves take turns: one is filled while the other is copied. Thread: one.
class HostStaging {
 public:
  static absl::StatusOr<std::unique_ptr<HostStaging>> Make(size_t half_bytes, Runtime& runtime,
                                                           Stream stream);

  // Enqueues the copy; the caller may reuse the host memory when it returns.
  void CopyToDevice(void* device, const void* host, size_t size_bytes);
  // The same for bytes that fill(offset, size, to) writes, part by part.
  void FillDevice(void* device, size_t size_bytes,
                  absl::FunctionRef<void(size_t offset, size_t size, void* to)> fill);
  // Waits for the stream's earlier work and for the copy.
  void CopyToHost(void* host, const void* device, size_t size_bytes);

  size_t half_bytes() const { return half_bytes_; }

 private:
  HostStaging(size_t half_bytes, Runtime& runtime, Stream stream)
      : half_bytes_(half_bytes), runtime_(runtime), stream_(stream) {}

  struct Half {
    std::byte* pinned = nullptr;
    std::unique_ptr<DeviceEvent> copied;
  };
  const size_t half_bytes_;
  Runtime& runtime_;
  const Stream stream_;
  std::array<Half, 2> halves_;
  size_t next_ = 0;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_HOST_STAGING_H_
