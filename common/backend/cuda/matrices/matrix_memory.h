// Where the elements of packed matrices are: in the device's memory, or pinned in the host's.
#ifndef BATON_COMMON_BACKEND_CUDA_MATRICES_MATRIX_MEMORY_H_
#define BATON_COMMON_BACKEND_CUDA_MATRICES_MATRIX_MEMORY_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/runtime/host_staging.h"
#include "common/backend/cuda/runtime/runtime.h"

namespace baton::backend::cuda {

// Thread: as Backend. What it allocates must not outlive it.
class MatrixMemory {
 public:
  virtual ~MatrixMemory() = default;
  virtual bool on_host() const = 0;
  // RESOURCE_EXHAUSTED, naming the size.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) = 0;
  // Fills `to`, a part of such memory, with what fill(offset, size, to) writes, part by part.
  virtual void Fill(void* to, size_t size_bytes,
                    absl::FunctionRef<void(size_t offset, size_t size, void* to)> fill) = 0;
};

class DeviceMatrixMemory final : public MatrixMemory {
 public:
  DeviceMatrixMemory(Backend& backend, HostStaging& staging)
      : backend_(backend), staging_(staging) {}
  bool on_host() const override { return false; }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) override {
    return backend_.Allocate(size_bytes);
  }
  void Fill(void* to, size_t size_bytes,
            absl::FunctionRef<void(size_t, size_t, void*)> fill) override {
    staging_.FillDevice(to, size_bytes, fill);
  }

 private:
  Backend& backend_;
  HostStaging& staging_;
};

// Pins memory by the slab for small matrices, because each call takes the driver long. It is freed
// with the runtime.
class PinnedMatrixMemory final : public MatrixMemory {
 public:
  explicit PinnedMatrixMemory(Runtime& runtime) : runtime_(runtime) {}
  bool on_host() const override { return true; }
  // RESOURCE_EXHAUSTED (HOST_MEMORY).
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t size_bytes) override;
  size_t pinned_bytes() const { return pinned_bytes_; }
  void Fill(void* to, size_t size_bytes,
            absl::FunctionRef<void(size_t, size_t, void*)> fill) override {
    fill(0, size_bytes, to);
  }

 private:
  absl::StatusOr<std::byte*> Pin(size_t size_bytes);

  Runtime& runtime_;
  std::byte* next_ = nullptr;  // free memory of the last slab
  size_t left_ = 0;
  size_t pinned_bytes_ = 0;
};

// Packs matrices into `memory`, for products with activations of `dtype`.
class CudaMatrixPacker final : public MatrixPacker {
 public:
  CudaMatrixPacker(DType dtype, std::unique_ptr<MatrixMemory> memory)
      : dtype_(dtype), memory_(std::move(memory)) {}
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(absl::Span<const HostMatrix> stacked) override;
  absl::StatusOr<std::unique_ptr<PackedMatrix>> PackQuantized(
      absl::Span<const QuantizedHostMatrix> stacked) override;

 private:
  const DType dtype_;
  const std::unique_ptr<MatrixMemory> memory_;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_MATRICES_MATRIX_MEMORY_H_
