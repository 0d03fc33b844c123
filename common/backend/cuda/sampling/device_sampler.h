// Draws a step's tokens on the device: packs requests, launches, copies the results back.
#ifndef BATON_COMMON_BACKEND_CUDA_SAMPLING_DEVICE_SAMPLER_H_
#define BATON_COMMON_BACKEND_CUDA_SAMPLING_DEVICE_SAMPLER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/backend/cuda/sampling/sampling_upload.h"

namespace baton::backend::cuda {

// Thread: one.
class DeviceSampler {
 public:
  static size_t DeviceBytes(const StepLimits& limits);

  // `device`: DeviceBytes(limits) bytes of device memory, zeroed.
  static absl::StatusOr<std::unique_ptr<DeviceSampler>> Make(const StepLimits& limits, void* device,
                                                             Runtime& runtime, Stream stream);

  // Works as Backend::EnqueueSample: up to Backend::kMaxDraws calls may be uncollected. logits,
  // token_count: the step's logits and its number of input tokens. input_tokens: those tokens, on
  // the device. A row whose last token was drawn by a step that is not collected yet has that
  // token's index here as its SampleRow::drawn_row. packed: the host's image of `rows` when the
  // caller has already copied it to d_packed on the device; null: Enqueue packs and copies them.
  void Enqueue(const Tensor& logits, int64_t token_count, absl::Span<const SampleRow> rows,
               const int32_t* input_tokens, const SamplingUpload* packed = nullptr,
               const std::byte* d_packed = nullptr);
  // Waits for the oldest uncollected Enqueue, and copies its outcomes.
  void Collect(absl::Span<SampleOutcome> outcomes);
  // A device pointer to the results of the last Enqueue. The next step reads its input tokens
  // there.
  const SampleResult* results() const {
    return reinterpret_cast<const SampleResult*>(device_ + layout_.results);
  }

 private:
  static constexpr size_t kBuffers = Backend::kMaxDraws;
  // The layout of the device memory.
  struct Layout {
    SamplingCapacity room;     // the largest batch of draws
    int64_t workspace_stride;  // elements of a row of `adjusted` and of `seen`
    // Offsets in bytes; `total` is the size.
    size_t adjusted, seen, adjusted_quads, scratch, requests, results, total;
    size_t result_count;
  };
  static Layout LayoutFor(const StepLimits& limits);

  DeviceSampler(const Layout& layout, void* device, Runtime& runtime, Stream stream)
      : layout_(layout),
        device_(static_cast<std::byte*>(device)),
        runtime_(runtime),
        stream_(stream) {}

  const Layout layout_;
  std::byte* const device_;
  Runtime& runtime_;
  const Stream stream_;
  SamplingUpload upload_;
  // Used round-robin, because the device may still be reading the previous launch's buffer.
  struct Requests {
    std::byte* pinned = nullptr;
    std::unique_ptr<DeviceEvent> copied;
  };
  std::array<Requests, kBuffers> requests_;
  size_t next_requests_ = 0;
  struct Drawn {
    SampleResult* pinned = nullptr;
    size_t count = 0;
    std::unique_ptr<DeviceEvent> copied;
  };
  std::array<Drawn, kBuffers> drawn_;
  size_t enqueued_ = 0, collected_ = 0;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_SAMPLING_DEVICE_SAMPLER_H_
