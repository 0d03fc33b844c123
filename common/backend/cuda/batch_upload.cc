#include "common/backend/cuda/batch_upload.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/memory/memory.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kPartAlignment = 16;

size_t Rounded(size_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

// Parts of a slot, one behind the other, written to pinned memory and found again on the device.
class Packer {
 public:
  Packer(std::byte* pinned, std::byte* device, size_t capacity)
      : pinned_(pinned), device_(device), capacity_(capacity) {}

  template <class T>
  T* Take(size_t count, const T** device) {
    const size_t begin = size_;
    size_ += Rounded(count * sizeof(T));
    BATON_CHECK_LE(size_, capacity_) << "a batch beyond the limits that memory was made for";
    *device = reinterpret_cast<const T*>(device_ + begin);
    return reinterpret_cast<T*>(pinned_ + begin);
  }
  template <class T>
  void Copy(absl::Span<const T> values, const T** device) {
    T* to = Take(values.size(), device);
    if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(T));
  }
  size_t size() const { return size_; }

 private:
  std::byte* const pinned_;
  std::byte* const device_;
  const size_t capacity_;
  size_t size_ = 0;
};

}  // namespace

CudaBatch::~CudaBatch() { upload_.slots_[static_cast<size_t>(slot_)].used = false; }

size_t BatchUpload::SlotBytes(const StepLimits& limits, const AttentionRoom& room) {
  const auto rows = static_cast<size_t>(limits.max_rows);
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  const auto blocks_a_sequence =
      static_cast<size_t>((limits.max_positions + limits.block_tokens - 1) / limits.block_tokens);
  return 4 * Rounded(rows * sizeof(int32_t)) +
         Rounded(sequences * blocks_a_sequence * sizeof(int32_t)) +
         Rounded(sequences * sizeof(SequenceEntry)) +
         Rounded(static_cast<size_t>(room.items) * sizeof(AttentionItem)) + 8 * kPartAlignment;
}

size_t BatchUpload::DeviceBytes(const StepLimits& limits, const AttentionRoom& room) {
  return kSlots * SlotBytes(limits, room);
}

BatchUpload::BatchUpload(const StepLimits& limits, const AttentionRoom& room, Runtime& runtime,
                         Stream stream)
    : limits_(limits), room_(room), runtime_(runtime), stream_(stream) {}

absl::StatusOr<std::unique_ptr<BatchUpload>> BatchUpload::Make(const StepLimits& limits,
                                                               const AttentionRoom& room,
                                                               void* device, Runtime& runtime,
                                                               Stream stream) {
  auto upload = absl::WrapUnique(new BatchUpload(limits, room, runtime, stream));
  const size_t slot_bytes = SlotBytes(limits, room);
  BATON_ASSIGN_OR_RETURN(void* const pinned, runtime.AllocatePinned(kSlots * slot_bytes));
  for (size_t i = 0; i < kSlots; ++i) {
    upload->slots_[i].pinned = static_cast<std::byte*>(pinned) + i * slot_bytes;
    upload->slots_[i].device = static_cast<std::byte*>(device) + i * slot_bytes;
  }
  return upload;
}

std::unique_ptr<CudaBatch> BatchUpload::Upload(const RaggedBatch& batch) {
  const auto free_slot =
      std::find_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return !slot.used; });
  BATON_CHECK(free_slot != slots_.end()) << "more than " << kSlots << " batches live";
  Slot& slot = *free_slot;
  if (slot.copied != nullptr) slot.copied->Wait();
  slot.used = true;
  auto result =
      absl::WrapUnique(new CudaBatch(*this, static_cast<int>(free_slot - slots_.begin())));
  CudaBatch& to = *result;
  const size_t rows = batch.tokens.size();
  BATON_CHECK(rows > 0 && rows <= static_cast<size_t>(limits_.max_rows)) << rows << " rows";
  BATON_CHECK_LE(batch.sequences.size(), static_cast<size_t>(limits_.max_sequences));
  to.rows = static_cast<int>(rows);
  to.logit_count = static_cast<int>(batch.logit_rows.size());
  to.block_tokens = limits_.block_tokens;
  const auto [least, greatest] = std::minmax_element(batch.tokens.begin(), batch.tokens.end());
  to.least_token = *least;
  to.greatest_token = *greatest;
  for (const int32_t row : batch.logit_rows) {
    BATON_CHECK(row >= 0 && row < to.rows) << "logit row " << row;
  }

  Packer packer(slot.pinned, slot.device, SlotBytes(limits_, room_));
  packer.Copy(batch.tokens, &to.d_tokens);
  packer.Copy(batch.logit_rows, &to.d_logit_rows);
  int32_t* positions = packer.Take(rows, &to.d_positions);
  int32_t* sequence_of_row = packer.Take(rows, &to.d_sequence_of_row);
  SequenceEntry* entries = packer.Take(batch.sequences.size(), &to.d_sequences);
  // Only the blocks that the step's tokens lie in: more may be reserved.
  const auto blocks_of = [&](const SequenceRows& sequence) {
    const int end = sequence.context + sequence.row_count;
    const auto count = static_cast<size_t>((end + limits_.block_tokens - 1) / limits_.block_tokens);
    BATON_CHECK_GE(sequence.blocks.size(), count) << "blocks for " << end << " tokens";
    return sequence.blocks.first(count);
  };
  size_t table_size = 0;
  for (const SequenceRows& sequence : batch.sequences) table_size += blocks_of(sequence).size();
  int32_t* table = packer.Take(table_size, &to.d_tables);

  to.least_block = std::numeric_limits<int32_t>::max();
  to.greatest_block = -1;
  int row = 0, block = 0, index = 0;
  for (const SequenceRows& sequence : batch.sequences) {
    BATON_CHECK_EQ(sequence.first_row, row);
    const int end = sequence.context + sequence.row_count;
    BATON_CHECK(sequence.row_count > 0 && sequence.context >= 0 && end <= limits_.max_positions)
        << sequence.row_count << " rows behind " << sequence.context << " tokens";
    entries[index] = {row, sequence.row_count, sequence.context, block};
    for (int i = 0; i < sequence.row_count; ++i, ++row) {
      BATON_CHECK_LT(row, to.rows);
      positions[row] = sequence.context + i;
      sequence_of_row[row] = index;
    }
    for (const int32_t id : blocks_of(sequence)) {
      to.least_block = std::min(to.least_block, id);
      to.greatest_block = std::max(to.greatest_block, id);
      table[block++] = id;
    }
    to.last_position = std::max(to.last_position, end - 1);
    ++index;
  }
  BATON_CHECK_EQ(row, to.rows);

  const AttentionPlan plan = PlanAttention(absl::MakeConstSpan(entries, batch.sequences.size()),
                                           limits_.query_heads / limits_.kv_heads, room_);
  packer.Copy(absl::MakeConstSpan(plan.split_items), &to.d_split_items);
  packer.Copy(absl::MakeConstSpan(plan.tile_items), &to.d_tile_items);
  to.split_items = static_cast<int>(plan.split_items.size());
  to.tile_items = static_cast<int>(plan.tile_items.size());
  runtime_.CopyToDevice(slot.device, slot.pinned, packer.size(), stream_);
  slot.copied = runtime_.Record(stream_);
  return result;
}

}  // namespace baton::backend::cuda
