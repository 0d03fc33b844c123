// Draws a step's tokens on the device: packs requests, launches, brings the choices back.
#ifndef BATON_COMMON_BACKEND_CUDA_DEVICE_SAMPLER_H_
#define BATON_COMMON_BACKEND_CUDA_DEVICE_SAMPLER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/runtime.h"
#include "common/backend/cuda/sampling_upload.h"

namespace baton::backend::cuda {

// Thread: one.
class DeviceSampler {
 public:
  static size_t DeviceBytes(const StepLimits& limits);

  // device: DeviceBytes of device memory, all zero.
  static absl::StatusOr<std::unique_ptr<DeviceSampler>> Make(const StepLimits& limits, void* device,
                                                             Runtime& runtime, Stream stream);

  // As Backend::Sample.
  void Sample(const Tensor& logits, int64_t token_count, absl::Span<const SampleRow> rows,
              absl::Span<SampleOutcome> outcomes);

 private:
  // What lies where in the device memory, in bytes from its start.
  struct Layout {
    SamplingRoom room;
    int64_t workspace_stride;  // elements
    size_t adjusted, seen, requests, results, total;
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
  std::byte* pinned_requests_ = nullptr;
  SampleResult* pinned_results_ = nullptr;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_DEVICE_SAMPLER_H_
