#include "common/backend/cuda/matrices/matrix_memory.h"

#include <algorithm>

#include "common/backend/cuda/matrices/device_weights.h"
#include "common/backend/cuda/matrices/quantized_matrix.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kSlabBytes = size_t{64} << 20;

class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(void* data, size_t size_bytes) : Buffer(data, size_bytes) {}
};

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> PinnedMatrixMemory::Allocate(size_t size_bytes) {
  const auto taken = static_cast<size_t>(FetchedMatrixBytes(static_cast<int64_t>(size_bytes)));
  if (taken > left_) {
    const size_t slab = std::max(taken, kSlabBytes);
    BATON_ASSIGN_OR_RETURN(void* const memory, runtime_.AllocatePinned(slab));
    next_ = static_cast<std::byte*>(memory);
    left_ = slab;
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
