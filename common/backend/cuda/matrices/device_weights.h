// A model's matrices and RoPE tables on the device.
#ifndef BATON_COMMON_BACKEND_CUDA_MATRICES_DEVICE_WEIGHTS_H_
#define BATON_COMMON_BACKEND_CUDA_MATRICES_DEVICE_WEIGHTS_H_

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/matrices/matrix_memory.h"
#include "common/backend/cuda/runtime/host_staging.h"

namespace baton::backend::cuda {

// Row-major [out_features, in_features] in the activation type.
class CudaMatrix final : public PackedMatrix {
 public:
  // Concatenates `stacked` along out_features (query, key and value; gate and up) and uploads them.
  // UNIMPLEMENTED (UNSUPPORTED_MODEL) if in_features is not a multiple of 8.
  static absl::StatusOr<std::unique_ptr<PackedMatrix>> Make(absl::Span<const HostMatrix> stacked,
                                                            DType dtype, MatrixMemory& memory);
  CudaMatrix(std::unique_ptr<Buffer> memory, bool on_host, int64_t out_features,
             int64_t in_features)
      : PackedMatrix(out_features, in_features), memory_(std::move(memory)), on_host_(on_host) {}
  int64_t size_bytes() const override { return static_cast<int64_t>(memory_->size_bytes()); }
  const void* data() const { return memory_->data(); }
  bool on_host() const { return on_host_; }

 private:
  const std::unique_ptr<Buffer> memory_;
  const bool on_host_;
};

struct CudaRopeTable final : public RopeTable {
  // UNIMPLEMENTED (UNSUPPORTED_MODEL) if the number of rotated dims is not a multiple of 8.
  static absl::StatusOr<std::unique_ptr<RopeTable>> Make(const RopeSpec& spec, int max_positions,
                                                         Backend& backend, HostStaging& staging);

  int half = 0;  // of the number of rotated dims
  int positions = 0;
  std::unique_ptr<Buffer> cosine, sine;  // f32 [positions, half]
  std::unique_ptr<Buffer> query_scale;  // f32 [positions], by which queries are multiplied; or null
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_MATRICES_DEVICE_WEIGHTS_H_
