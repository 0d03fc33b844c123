#include "common/backend/cuda/matrices/matrix_memory.h"

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/matrices/device_weights.h"
#include "common/backend/cuda/matrices/quantized_matrix.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kSlabBytes = size_t{64} << 20;

class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(void* data, size_t size_bytes) : Buffer(data, size_bytes) {}
};

}  // namespace

absl::StatusOr<std::byte*> PinnedMatrixMemory::Pin(size_t size_bytes) {
  const absl::StatusOr<void*> memory = runtime_.AllocatePinned(size_bytes);
  if (!memory.ok()) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "HOST_MEMORY",
        absl::StrCat("--experts-on-host: ", pinned_bytes_, " bytes are pinned, ", size_bytes,
                     " more cannot be pinned: ", memory.status().message()));
  }
  pinned_bytes_ += size_bytes;
  return static_cast<std::byte*>(*memory);
}

absl::StatusOr<std::unique_ptr<Buffer>> PinnedMatrixMemory::Allocate(size_t size_bytes) {
  const auto taken = static_cast<size_t>(FetchedMatrixBytes(static_cast<int64_t>(size_bytes)));
  // A large matrix gets memory of its own, because it could leave the rest of a slab unused.
  if (taken > kSlabBytes / 16) {
    BATON_ASSIGN_OR_RETURN(std::byte* const own, Pin(taken));
    return std::make_unique<PinnedBuffer>(own, size_bytes);
  }
  if (taken > left_) {
    BATON_ASSIGN_OR_RETURN(next_, Pin(kSlabBytes));
    left_ = kSlabBytes;
  }
  auto buffer = std::make_unique<PinnedBuffer>(next_, size_bytes);
  next_ += taken;
  left_ -= taken;
  return buffer;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> CudaMatrixPacker::Pack(
    absl::Span<const HostMatrix> stacked) {
  return CudaMatrix::Make(stacked, dtype_, *memory_);
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> CudaMatrixPacker::PackQuantized(
    absl::Span<const QuantizedHostMatrix> stacked) {
  return CudaQuantizedMatrix::Make(stacked, dtype_, *memory_);
}

}  // namespace baton::backend::cuda
