#include "common/backend/cuda/steps/batch_upload.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

// Rows follow its last store.
bool LeavesNoState(const SequenceRows& sequence) {
  return !sequence.state_stores.empty() &&
         sequence.state_stores.back().tokens < sequence.context + sequence.row_count;
}

// Parts of a slot, one behind the other, written to pinned memory and found again on the device.
class Packer {
 public:
  Packer(std::byte* pinned, std::byte* device, size_t capacity)
      : pinned_(pinned), device_(device), capacity_(capacity) {}

  template <class T>
  T* Take(size_t count, const T** device) {
    T* to = nullptr;
    T* const pinned = Take(count, &to);
    *device = to;
    return pinned;
  }
  template <class T>
  T* Take(size_t count, T** device) {
    const size_t begin = size_;
    size_ += PartBytes(count * sizeof(T));
    BATON_CHECK_LE(size_, capacity_) << "a batch beyond the limits that memory was made for";
    *device = reinterpret_cast<T*>(device_ + begin);
    return reinterpret_cast<T*>(pinned_ + begin);
  }
  template <class T, class Device>
  void Copy(absl::Span<const T> values, Device** device) {
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

CudaBatch::~CudaBatch() {
  if (slot_ >= 0) upload_.slots_[static_cast<size_t>(slot_)].used = false;
}

const CudaBatch::Items& CudaBatch::ItemsOf(const AttentionHeads& heads) const {
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const Items& kind) { return kind.heads == heads; });
  BATON_CHECK(found != items.end())
      << heads.query_heads << " heads of " << heads.head_dim << " with " << heads.kv_heads
      << " KV heads are not of StepLimits";
  return *found;
}

BatchUpload::BatchUpload(const StepLimits& limits, absl::Span<const AttentionRoom> rooms,
                         Runtime& runtime, Stream stream)
    : limits_(limits),
      heads_(limits.heads()),
      rooms_(rooms.begin(), rooms.end()),
      runtime_(runtime),
      stream_(stream) {
  BATON_CHECK_EQ(heads_.size(), rooms_.size());
}

absl::StatusOr<std::unique_ptr<BatchUpload>> BatchUpload::Make(
    const StepLimits& limits, absl::Span<const AttentionRoom> rooms, void* device, Runtime& runtime,
    Stream stream) {
  auto upload = absl::WrapUnique(new BatchUpload(limits, rooms, runtime, stream));
  const size_t slot_bytes = SlotBytes(limits, rooms);
  const size_t padded_bytes = PaddedBytes(limits, rooms);
  BATON_ASSIGN_OR_RETURN(void* const memory, runtime.AllocatePinned(kSlots * slot_bytes +
                                                                    kPaddedHalves * padded_bytes));
  std::byte* pinned = static_cast<std::byte*>(memory);
  std::byte* to = static_cast<std::byte*>(device);
  for (Slot& slot : upload->slots_) {
    slot.pinned = std::exchange(pinned, pinned + slot_bytes);
    slot.device = std::exchange(to, to + slot_bytes);
  }
  for (Slot& half : upload->padded_) {
    half.pinned = std::exchange(pinned, pinned + padded_bytes);
    half.device = to;
  }
  return upload;
}

void BatchUpload::FillRows(const RaggedBatch& batch, CudaBatch& to, int32_t* positions,
                           int32_t* sequence_of_row, SequenceEntry* entries) const {
  const auto rows = static_cast<int>(batch.tokens.size());
  BATON_CHECK_LE(batch.sequences.size(), static_cast<size_t>(limits_.max_sequences));
  BATON_CHECK(batch.drawn.empty() || batch.drawn.size() == batch.tokens.size());
  to.block_tokens = limits_.block_tokens;
  const auto [least, greatest] = std::minmax_element(batch.tokens.begin(), batch.tokens.end());
  to.least_token = *least;
  to.greatest_token = *greatest;
  for (const int32_t drawn : batch.drawn) {
    BATON_CHECK(drawn >= kNotDrawn && drawn < limits_.max_logit_rows) << "draw " << drawn;
  }
  int row = 0, index = 0;
  for (const SequenceRows& sequence : batch.sequences) {
    BATON_CHECK_EQ(sequence.first_row, row);
    const int end = sequence.context + sequence.row_count;
    BATON_CHECK(sequence.row_count > 0 && sequence.context >= 0 && end <= limits_.max_positions)
        << sequence.row_count << " rows behind " << sequence.context << " tokens";
    entries[index] = {row, sequence.row_count, sequence.context, 0};
    for (int i = 0; i < sequence.row_count; ++i, ++row) {
      BATON_CHECK_LT(row, rows);
      positions[row] = sequence.context + i;
      sequence_of_row[row] = index;
    }
    to.last_position = std::max(to.last_position, end - 1);
    ++index;
  }
  BATON_CHECK_EQ(row, rows);
}

// Only the pages of the step's tokens: more may be reserved.
absl::Span<const int32_t> BatchUpload::PagesOf(const SequenceRows& sequence, int table) const {
  const int end = sequence.context + sequence.row_count;
  const auto count = static_cast<size_t>((end + limits_.block_tokens - 1) / limits_.block_tokens);
  const size_t stride = sequence.blocks.size() / static_cast<size_t>(block_tables());
  BATON_CHECK_GE(stride, count) << "blocks for " << end << " tokens";
  return sequence.blocks.subspan(static_cast<size_t>(table) * stride, count);
}

size_t BatchUpload::TableSize(const RaggedBatch& batch) const {
  size_t size = 0;
  for (const SequenceRows& sequence : batch.sequences) size += PagesOf(sequence, 0).size();
  return size * static_cast<size_t>(block_tables());
}

void BatchUpload::FillTable(const RaggedBatch& batch, int first_block, CudaBatch& to,
                            SequenceEntry* entries, int32_t* table) const {
  to.least_block = std::numeric_limits<int32_t>::max();
  to.greatest_block = -1;
  const size_t count = batch.sequences.size();
  for (int of = 0; of < block_tables(); ++of) {
    SequenceEntry* const in_table = entries + of * to.sequence_stride;
    if (of > 0) std::copy(entries, entries + count, in_table);
    for (size_t i = 0; i < count; ++i) {
      in_table[i].first_block = first_block;
      for (const int32_t page : PagesOf(batch.sequences[i], of)) {
        to.least_block = std::min(to.least_block, page);
        to.greatest_block = std::max(to.greatest_block, page);
        *table++ = page;
        ++first_block;
      }
    }
  }
}

// A batch of rows of which no state is computed has none.
size_t BatchUpload::StateTableSize(const RaggedBatch& batch) const {
  size_t size = 0;
  for (const SequenceRows& sequence : batch.sequences) {
    if (limits_.state_tables == 0 || sequence.state_stores.empty()) return 0;
    size += sequence.state.size() + sequence.state_stores.size();
    for (const StateStore& store : sequence.state_stores) size += store.pages.size();
    if (LeavesNoState(sequence)) size += 1 + static_cast<size_t>(limits_.state_tables);
  }
  return size;
}

void BatchUpload::FillStates(const RaggedBatch& batch, int first_page, CudaBatch& to,
                             StateEntry* entries, int32_t* table) const {
  int32_t* const begin = table;
  const auto place = [&] { return first_page + static_cast<int32_t>(table - begin); };
  const auto add_pages = [&](absl::Span<const int32_t> pages) {
    BATON_CHECK_EQ(pages.size(), static_cast<size_t>(limits_.state_tables));
    for (const int32_t page : pages) {
      to.least_block = std::min(to.least_block, page);
      to.greatest_block = std::max(to.greatest_block, page);
      *table++ = page;
    }
  };
  for (const SequenceRows& sequence : batch.sequences) {
    StateEntry& entry = *entries++;
    entry = {sequence.first_row, sequence.row_count, -1, 0,
             static_cast<int32_t>(sequence.state_stores.size())};
    if (!sequence.state.empty()) {
      entry.state = place();
      add_pages(sequence.state);
    }
    entry.stores = place();
    int tokens = sequence.context;
    for (const StateStore& store : sequence.state_stores) {
      BATON_CHECK_GT(store.tokens, tokens);
      tokens = store.tokens;
      *table++ = tokens - sequence.context;
      add_pages(store.pages);
    }
    BATON_CHECK_LE(tokens, sequence.context + sequence.row_count);
    if (!LeavesNoState(sequence)) continue;
    *table++ = sequence.row_count;
    table = std::fill_n(table, limits_.state_tables, -1);
  }
}

std::vector<AttentionPlan> BatchUpload::Plans(absl::Span<const SequenceEntry> entries) const {
  std::vector<AttentionPlan> plans;
  for (size_t kind = 0; kind < heads_.size(); ++kind) {
    plans.push_back(PlanAttention(entries, heads_[kind].group(), rooms_[kind]));
  }
  return plans;
}

void BatchUpload::Send(Slot& slot, size_t size_bytes) {
  LaunchUpload({.pinned = slot.pinned,
                .device = slot.device,
                .size_bytes = static_cast<int64_t>(size_bytes)},
               stream_);
  slot.copied = runtime_.Record(stream_);
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
  to.rows = static_cast<int>(rows);
  to.sequences = static_cast<int>(batch.sequences.size());
  to.logit_count = static_cast<int>(batch.logit_rows.size());
  for (const int32_t row : batch.logit_rows) {
    BATON_CHECK(row >= 0 && row < to.rows) << "logit row " << row;
  }

  Packer packer(slot.pinned, slot.device, SlotBytes(limits_, rooms_));
  packer.Copy(batch.tokens, &to.d_tokens);
  if (!batch.drawn.empty()) packer.Copy(batch.drawn, &to.d_drawn);
  packer.Copy(batch.logit_rows, &to.d_logit_rows);
  int32_t* positions = packer.Take(rows, &to.d_positions);
  int32_t* sequence_of_row = packer.Take(rows, &to.d_sequence_of_row);
  const auto tables = static_cast<size_t>(block_tables());
  to.sequence_stride = static_cast<int>(batch.sequences.size());
  SequenceEntry* entries = packer.Take(batch.sequences.size() * tables, &to.d_sequences);
  FillRows(batch, to, positions, sequence_of_row, entries);
  const size_t blocks = TableSize(batch), states = StateTableSize(batch);
  int32_t* const table = packer.Take(blocks + states, &to.d_tables);
  FillTable(batch, 0, to, entries, table);
  if (states > 0) {
    StateEntry* const of_states = packer.Take(batch.sequences.size(), &to.d_states);
    FillStates(batch, static_cast<int>(blocks), to, of_states, table + blocks);
  }
  const std::vector<AttentionPlan> plans =
      Plans(absl::MakeConstSpan(entries, batch.sequences.size()));
  for (size_t kind = 0; kind < plans.size(); ++kind) {
    const AttentionPlan& plan = plans[kind];
    CudaBatch::Items& items = to.items.emplace_back();
    items.heads = heads_[kind];
    packer.Copy(absl::MakeConstSpan(plan.split_items), &items.d_split_items);
    packer.Copy(absl::MakeConstSpan(plan.tile_items), &items.d_tile_items);
    items.split_items = items.split_blocks = static_cast<int>(plan.split_items.size());
    items.tile_items = static_cast<int>(plan.tile_items.size());
  }
  Send(slot, packer.size());
  return result;
}

std::unique_ptr<CudaBatch> BatchUpload::UploadPadded(const RaggedBatch& batch, int rows) {
  const size_t used = batch.tokens.size();
  const auto padded = static_cast<size_t>(rows);
  BATON_CHECK(used > 0 && used <= padded && rows <= limits_.max_sequences)
      << used << " rows of " << rows;
  BATON_CHECK_EQ(batch.sequences.size(), used);
  BATON_CHECK_EQ(batch.logit_rows.size(), used);
  Slot& half = padded_[next_padded_];
  if (half.copied != nullptr) half.copied->Wait();
  auto result = absl::WrapUnique(new CudaBatch(*this, -1));
  CudaBatch& to = *result;
  to.rows = to.logit_count = to.sequences = rows;

  Packer packer(half.pinned, half.device, PaddedBytes(limits_, rooms_));
  // The offsets of the items and of the parts before them depend on `rows` alone.
  const int* d_ranges = nullptr;
  int* const ranges = packer.Take(2 * heads_.size(), &d_ranges);
  const auto copy = [&](absl::Span<const int32_t> values, auto** device, int32_t filler) {
    int32_t* const end = packer.Take(padded, device) + padded;
    std::fill(std::copy(values.begin(), values.end(), end - padded), end, filler);
    return end - padded;
  };
  copy(batch.tokens, &to.d_tokens, 0);
  copy(batch.drawn, &to.d_drawn, kNotDrawn);
  int32_t* positions = copy({}, &to.d_positions, -1);
  int32_t* sequence_of_row = copy({}, &to.d_sequence_of_row, 0);
  to.sequence_stride = rows;
  SequenceEntry* entries =
      packer.Take(padded * static_cast<size_t>(block_tables()), &to.d_sequences);
  const size_t states = StateTableSize(batch);
  StateEntry* of_states = nullptr;
  if (states > 0) {
    of_states = packer.Take(padded, &to.d_states);
    std::fill(of_states + used, of_states + padded, StateEntry{});
  }
  FillRows(batch, to, positions, sequence_of_row, entries);
  std::vector<AttentionItem> all_items;
  const std::vector<AttentionPlan> plans = Plans(absl::MakeConstSpan(entries, used));
  for (size_t kind = 0; kind < plans.size(); ++kind) {
    const AttentionPlan& plan = plans[kind];
    if (!plan.tile_items.empty()) return nullptr;
    CudaBatch::Items& items = to.items.emplace_back();
    items.heads = heads_[kind];
    items.split_items = items.split_blocks = static_cast<int>(plan.split_items.size());
    items.d_split_range = d_ranges + 2 * kind;
    ranges[2 * kind] = static_cast<int>(all_items.size());
    all_items.insert(all_items.end(), plan.split_items.begin(), plan.split_items.end());
    ranges[2 * kind + 1] = static_cast<int>(all_items.size());
  }
  const AttentionItem* d_items = nullptr;
  packer.Copy(absl::MakeConstSpan(all_items), &d_items);
  for (CudaBatch::Items& items : to.items) items.d_split_items = d_items;
  // Tables begin where the items end: entries count from the slot's start.
  to.d_tables = reinterpret_cast<const int32_t*>(half.device);
  const int32_t* d_table = nullptr;
  const size_t blocks = TableSize(batch);
  int32_t* table = packer.Take(blocks + states, &d_table);
  const auto first_block = static_cast<int>(d_table - to.d_tables);
  FillTable(batch, first_block, to, entries, table);
  if (states > 0) {
    FillStates(batch, first_block + static_cast<int>(blocks), to, of_states, table + blocks);
  }
  if (!batch.draws.empty() &&
      draws_.Pack(batch.draws, DrawCapacity(limits_)) == batch.draws.size()) {
    packer.Copy(draws_.bytes(), &to.d_draws);
  }
  Send(half, packer.size());
  next_padded_ = (next_padded_ + 1) % kPaddedHalves;
  return result;
}

}  // namespace baton::backend::cuda
