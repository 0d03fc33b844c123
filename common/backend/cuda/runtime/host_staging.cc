#include "common/backend/cuda/runtime/host_staging.h"

#include <algorithm>
#include <cstring>

#include "absl/memory/memory.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {

absl::StatusOr<std::unique_ptr<HostStaging>> HostStaging::Make(size_t half_bytes, Runtime& runtime,
                                                               Stream stream) {
  auto staging = absl::WrapUnique(new HostStaging(half_bytes, runtime, stream));
  for (Half& half : staging->halves_) {
    BATON_ASSIGN_OR_RETURN(void* const pinned, runtime.AllocatePinned(half_bytes));
    half.pinned = static_cast<std::byte*>(pinned);
  }
  return staging;
}

void HostStaging::FillDevice(void* device, size_t size_bytes,
                             absl::FunctionRef<void(size_t, size_t, void*)> fill) {
  for (size_t offset = 0; offset < size_bytes; offset += half_bytes_) {
    Half& half = halves_[next_];
    next_ ^= 1;
    if (half.copied != nullptr) half.copied->Wait();
    const size_t size = std::min(half_bytes_, size_bytes - offset);
    fill(offset, size, half.pinned);
    runtime_.CopyToDevice(static_cast<std::byte*>(device) + offset, half.pinned, size, stream_);
    half.copied = runtime_.Record(stream_);
  }
}

void HostStaging::CopyToDevice(void* device, const void* host, size_t size_bytes) {
  FillDevice(device, size_bytes, [host](size_t offset, size_t size, void* to) {
    std::memcpy(to, static_cast<const std::byte*>(host) + offset, size);
  });
}

void HostStaging::CopyToHost(void* host, const void* device, size_t size_bytes) {
  for (size_t offset = 0; offset < size_bytes; offset += half_bytes_) {
    Half& half = halves_[next_];
    next_ ^= 1;
    if (half.copied != nullptr) half.copied->Wait();
    const size_t size = std::min(half_bytes_, size_bytes - offset);
    runtime_.CopyToHost(half.pinned, static_cast<const std::byte*>(device) + offset, size, stream_);
    runtime_.Synchronize(stream_);
    half.copied = nullptr;
    std::memcpy(static_cast<std::byte*>(host) + offset, half.pinned, size);
  }
}

}  // namespace baton::backend::cuda
