// SampleRows packed for the sampling kernel: one buffer, for one copy to the device.
#ifndef BATON_COMMON_BACKEND_CUDA_SAMPLING_SAMPLING_UPLOAD_H_
#define BATON_COMMON_BACKEND_CUDA_SAMPLING_SAMPLING_UPLOAD_H_

#include <vector>

#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/kernels/sampling.h"

namespace baton::backend::cuda {

// Limits of one launch.
struct SamplingCapacity {
  size_t bytes = 0;        // on the device
  int workspace_rows = 0;  // at least 1: rows of requests that change their logits
};

class SamplingUpload {
 public:
  // Packs rows from the first on, as many as there is room for, and returns how many; discards what
  // was packed before. Tokens are packed only for penalties.
  size_t Pack(absl::Span<const SampleRow> rows, const SamplingCapacity& room);

  absl::Span<const std::byte> bytes() const { return bytes_; }
  // The rows in the launch, once bytes() are copied to `device`, a multiple of 16 bytes.
  void PointTo(const std::byte* device, SampleLaunch& launch) const;

  // The most that a row with so many history tokens, suppressed tokens and biases takes.
  static constexpr size_t MaxBytes(size_t tokens, size_t suppressed, size_t biases) {
    return sizeof(SampleRequest) + (tokens + suppressed) * sizeof(int32_t) +
           biases * sizeof(TokenBias);
  }

 private:
  // requests, biases, ids.
  std::vector<std::byte> bytes_;
  size_t first_bias_ = 0;  // in bytes
  size_t first_id_ = 0;
  // Reused between calls.
  std::vector<SampleRequest> requests_;
  std::vector<TokenBias> biases_;
  std::vector<int32_t> ids_;
};

SampleOutcome OutcomeOf(const SampleResult& result);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_SAMPLING_SAMPLING_UPLOAD_H_
