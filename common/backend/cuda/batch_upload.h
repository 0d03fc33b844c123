// Steps' batches on their way to the device: one packed copy each, through a few slots that are
// made at start.
#ifndef BATON_COMMON_BACKEND_CUDA_BATCH_UPLOAD_H_
#define BATON_COMMON_BACKEND_CUDA_BATCH_UPLOAD_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/attention_plan.h"
#include "common/backend/cuda/runtime.h"

namespace baton::backend::cuda {

class BatchUpload;

// Parts of a slot begin at multiples of this.
inline constexpr size_t kPartAlignment = 16;
constexpr size_t PartBytes(size_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

// Device pointers, valid while it lives.
class CudaBatch final : public DeviceBatch {
 public:
  ~CudaBatch() override;
  CudaBatch(const CudaBatch&) = delete;
  CudaBatch& operator=(const CudaBatch&) = delete;

  int rows = 0;
  int logit_count = 0;
  int split_items = 0;
  int tile_items = 0;
  // For checks on the host: the kernels trust what they are given.
  int32_t least_token = 0, greatest_token = 0;
  int32_t least_block = 0, greatest_block = 0;
  int last_position = 0;
  int block_tokens = 0;  // that the tables were checked with

  const int32_t* d_tokens = nullptr;           // [rows]
  const int32_t* d_positions = nullptr;        // [rows]
  const int32_t* d_sequence_of_row = nullptr;  // [rows]
  const int32_t* d_logit_rows = nullptr;       // [logit_count]
  const int32_t* d_tables = nullptr;
  const SequenceEntry* d_sequences = nullptr;
  const AttentionItem* d_split_items = nullptr;
  const AttentionItem* d_tile_items = nullptr;

 private:
  friend class BatchUpload;
  CudaBatch(BatchUpload& upload, int slot) : upload_(upload), slot_(slot) {}
  BatchUpload& upload_;
  const int slot_;
};

// Thread: one. Outlives its batches.
class BatchUpload {
 public:
  // Device bytes that the slots take.
  static size_t DeviceBytes(const StepLimits& limits, const AttentionRoom& room);

  // `device`: DeviceBytes of device memory.
  static absl::StatusOr<std::unique_ptr<BatchUpload>> Make(const StepLimits& limits,
                                                           const AttentionRoom& room, void* device,
                                                           Runtime& runtime, Stream stream);

  // REQUIRES: within the limits; fewer than kSlots batches live.
  std::unique_ptr<CudaBatch> Upload(const RaggedBatch& batch);

  // A step's two, and those of the step before while they are being replaced.
  static constexpr int kSlots = 4;

 private:
  friend class CudaBatch;
  struct Slot {
    std::byte* pinned = nullptr;
    std::byte* device = nullptr;
    bool used = false;
    std::unique_ptr<DeviceEvent> copied;  // the pinned bytes may be written again
  };

  BatchUpload(const StepLimits& limits, const AttentionRoom& room, Runtime& runtime, Stream stream);
  static size_t SlotBytes(const StepLimits& limits, const AttentionRoom& room);

  const StepLimits limits_;
  const AttentionRoom room_;
  Runtime& runtime_;
  const Stream stream_;
  std::array<Slot, kSlots> slots_;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_BATCH_UPLOAD_H_
