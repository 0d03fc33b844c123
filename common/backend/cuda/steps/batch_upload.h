// Uploads of batches: one packed copy each, through a few slots allocated at start.
#ifndef BATON_COMMON_BACKEND_CUDA_STEPS_BATCH_UPLOAD_H_
#define BATON_COMMON_BACKEND_CUDA_STEPS_BATCH_UPLOAD_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/kernels/recurrence.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/backend/cuda/sampling/sampling_upload.h"
#include "common/backend/cuda/steps/attention_plan.h"

namespace baton::backend::cuda {

class BatchUpload;

// The alignment of a slot's parts.
inline constexpr size_t kPartAlignment = 16;
constexpr size_t PartBytes(size_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

// Device pointers, valid while it lives; of a padded batch, until the next padded upload's copy.
class CudaBatch final : public DeviceBatch {
 public:
  ~CudaBatch() override;
  CudaBatch(const CudaBatch&) = delete;
  CudaBatch& operator=(const CudaBatch&) = delete;

  int rows = 0;       // of the tensors: the batch's, then padding
  int sequences = 0;  // the batch's, then padding
  int logit_count = 0;
  // What attention computes with one of StepLimits::heads().
  struct Items {
    AttentionHeads heads;
    int split_items = 0;
    int split_blocks = 0;  // to launch for them, for each KV head
    int tile_items = 0;
    const AttentionItem* d_split_items = nullptr;
    const AttentionItem* d_tile_items = nullptr;
    // Padded: the first of its split items in d_split_items, which all kinds share, and their end.
    const int* d_split_range = nullptr;
  };
  std::vector<Items> items;
  // The host checks these: the kernels check nothing.
  int32_t least_token = 0, greatest_token = 0;
  int32_t least_block = 0, greatest_block = 0;
  int last_position = 0;
  int block_tokens = 0;  // for which the tables were checked

  int32_t* d_tokens = nullptr;                 // [rows]; Embed fills in the drawn ones
  const int32_t* d_drawn = nullptr;            // [rows], as RaggedBatch has it, or null
  const int32_t* d_positions = nullptr;        // [rows]; -1: padding
  const int32_t* d_sequence_of_row = nullptr;  // [rows]
  const int32_t* d_logit_rows = nullptr;       // [logit_count]
  const int32_t* d_tables = nullptr;
  const SequenceEntry* d_sequences = nullptr;  // [kv_tables][sequence_stride]
  int sequence_stride = 0;
  // [sequences], null unless all of them say where their states are.
  const StateEntry* d_states = nullptr;
  const std::byte* d_draws = nullptr;  // padded: BatchUpload::draws(), or null

  // REQUIRES: one of StepLimits::heads().
  const Items& ItemsOf(const AttentionHeads& heads) const;
  // The sequences with their first block in that table.
  const SequenceEntry* SequencesOf(int table) const {
    return d_sequences + table * sequence_stride;
  }

 private:
  friend class BatchUpload;
  CudaBatch(BatchUpload& upload, int slot) : upload_(upload), slot_(slot) {}
  BatchUpload& upload_;
  const int slot_;  // -1: the padded batches' slot, which is not returned
};

// Thread: one. Outlives its batches.
class BatchUpload {
 public:
  // Device bytes that the slots take. rooms: of each of limits.heads().
  static size_t DeviceBytes(const StepLimits& limits, absl::Span<const AttentionRoom> rooms);

  // `device`: DeviceBytes of device memory.
  static absl::StatusOr<std::unique_ptr<BatchUpload>> Make(const StepLimits& limits,
                                                           absl::Span<const AttentionRoom> rooms,
                                                           void* device, Runtime& runtime,
                                                           Stream stream);

  // REQUIRES: within the limits; fewer than kSlots batches live.
  std::unique_ptr<CudaBatch> Upload(const RaggedBatch& batch);

  // A batch of one row a sequence, all of them logit rows, with padding up to `rows` rows; padding
  // reads and writes no KV. It is always at the same device address, with the same layout for the
  // same `rows`, so that a recorded step can run for another batch. Null, enqueuing nothing, if a
  // sequence would need the tile kernel. REQUIRES: batch.tokens.size() <= rows <= max_sequences.
  std::unique_ptr<CudaBatch> UploadPadded(const RaggedBatch& batch, int rows);

  // The draws of the last padded batch with d_draws.
  const SamplingUpload& draws() const { return draws_; }

  // Two of a step, and two of the step before.
  static constexpr int kSlots = 4;

 private:
  friend class CudaBatch;
  struct Slot {
    std::byte* pinned = nullptr;
    std::byte* device = nullptr;
    bool used = false;
    std::unique_ptr<DeviceEvent> copied;  // the pinned bytes may be written again
  };
  // Padded batches have one slot on the device, ordered by the stream, and two on the host, which
  // fills one while the other is copied.
  static constexpr int kPaddedHalves = 2;

  int block_tables() const { return limits_.kv_tables - limits_.state_tables; }
  void FillRows(const RaggedBatch& batch, CudaBatch& to, int32_t* positions,
                int32_t* sequence_of_row, SequenceEntry* entries) const;
  absl::Span<const int32_t> PagesOf(const SequenceRows& sequence, int table) const;
  size_t TableSize(const RaggedBatch& batch) const;
  void FillTable(const RaggedBatch& batch, int first_block, CudaBatch& to, SequenceEntry* entries,
                 int32_t* table) const;
  // The numbers of the states' pages: how many, and where they begin.
  size_t StateTableSize(const RaggedBatch& batch) const;
  void FillStates(const RaggedBatch& batch, int first_page, CudaBatch& to, StateEntry* entries,
                  int32_t* table) const;
  void Send(Slot& slot, size_t size_bytes);

  // The attention of the entries, for each kind of heads.
  std::vector<AttentionPlan> Plans(absl::Span<const SequenceEntry> entries) const;

  BatchUpload(const StepLimits& limits, absl::Span<const AttentionRoom> rooms, Runtime& runtime,
              Stream stream);
  static size_t SlotBytes(const StepLimits& limits, absl::Span<const AttentionRoom> rooms);
  static size_t PaddedBytes(const StepLimits& limits, absl::Span<const AttentionRoom> rooms);
  // The capacity for draws uploaded with a batch: all rows without a history, and some with one.
  static SamplingCapacity DrawCapacity(const StepLimits& limits);

  const StepLimits limits_;
  const std::vector<AttentionHeads> heads_;
  const std::vector<AttentionRoom> rooms_;
  Runtime& runtime_;
  const Stream stream_;
  std::array<Slot, kSlots> slots_;
  std::array<Slot, kPaddedHalves> padded_;  // all with one device address
  size_t next_padded_ = 0;
  SamplingUpload draws_;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_STEPS_BATCH_UPLOAD_H_
