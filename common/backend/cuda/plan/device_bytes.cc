// What the upload of batches, the sampler, the copier of KV, products of quantised weights and
// experts take of the device: their arithmetic, apart from what launches kernels, for builds that
// have none.
#include <algorithm>

#include "common/backend/cuda/kernels/experts.h"
#include "common/backend/cuda/matrices/expert_group.h"
#include "common/backend/cuda/matrices/quantized_matrix.h"
#include "common/backend/cuda/runtime/arena.h"
#include "common/backend/cuda/runtime/kv_copier.h"
#include "common/backend/cuda/sampling/device_sampler.h"
#include "common/backend/cuda/steps/batch_upload.h"
#include "common/backend/quantized.h"

namespace baton::backend::cuda {
namespace {

// Rows that change their logits in one launch; more take several launches. 1.2 MB each for a
// vocabulary of 150,000.
constexpr int kWorkspaceRows = 16;
constexpr size_t kMaxBiases = 1024;
// Histories and the like that a padded batch takes along. Longer ones go by a copy of their own.
constexpr size_t kDrawListBytes = size_t{64} << 10;
// Suppressed ids may be repeated: a worker takes up to 1,024 of a request, whatever the vocabulary.
constexpr size_t kLeastSuppressed = 4096;
// A frame of a transfer is at most 1 MiB; a few at once keep a copy engine busy.
constexpr size_t kStagingBytes = size_t{4} << 20;
// 16-bit weights that are dequantised at a time: enough rows for a product to run at its rate.
constexpr size_t kDequantizedBytes = size_t{32} << 20;

size_t Rounded(size_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

}  // namespace

size_t BatchUpload::SlotBytes(const StepLimits& limits, absl::Span<const AttentionRoom> rooms) {
  const auto rows = static_cast<size_t>(limits.max_rows);
  const auto sequences = static_cast<size_t>(limits.max_sequences);
  const auto tables = static_cast<size_t>(limits.kv_tables - limits.state_tables);
  const auto blocks_a_sequence =
      static_cast<size_t>((limits.max_positions + limits.block_tokens - 1) / limits.block_tokens);
  // A state is left behind whole blocks and a sequence's last row.
  const size_t stores = rows / static_cast<size_t>(limits.block_tokens) + 2 * sequences;
  const auto state_tables = static_cast<size_t>(limits.state_tables);
  const size_t states =
      limits.state_tables == 0
          ? 0
          : PartBytes(sequences * sizeof(StateEntry)) +
                PartBytes((sequences * state_tables + stores * (1 + state_tables)) *
                          sizeof(int32_t));
  size_t items = 0;  // of both kernels
  for (const AttentionRoom& room : rooms) {
    items += PartBytes(static_cast<size_t>(room.items) * sizeof(AttentionItem)) + kPartAlignment;
  }
  return states + items + 5 * PartBytes(rows * sizeof(int32_t)) +
         PartBytes(tables * sequences * blocks_a_sequence * sizeof(int32_t)) +
         PartBytes(tables * sequences * sizeof(SequenceEntry)) + 8 * kPartAlignment;
}

// The same parts of at most a row a sequence, and the ranges of items.
size_t BatchUpload::PaddedBytes(const StepLimits& limits, absl::Span<const AttentionRoom> rooms) {
  StepLimits padded = limits;
  padded.max_rows = limits.max_sequences;
  return SlotBytes(padded, rooms) + PartBytes(2 * rooms.size() * sizeof(int)) +
         PartBytes(DrawCapacity(limits).bytes);
}

SamplingCapacity BatchUpload::DrawCapacity(const StepLimits& limits) {
  SamplingCapacity room;
  room.bytes = static_cast<size_t>(limits.max_logit_rows) * SamplingUpload::MaxBytes(0, 0, 0) +
               kDrawListBytes;
  room.workspace_rows = std::min(kWorkspaceRows, limits.max_logit_rows);
  return room;
}

size_t BatchUpload::DeviceBytes(const StepLimits& limits, absl::Span<const AttentionRoom> rooms) {
  return kSlots * SlotBytes(limits, rooms) + PaddedBytes(limits, rooms);
}

DeviceSampler::Layout DeviceSampler::LayoutFor(const StepLimits& limits) {
  Layout layout = {};
  const auto vocab = static_cast<size_t>(limits.vocab_size);
  layout.room.workspace_rows = std::min(kWorkspaceRows, limits.max_logit_rows);
  layout.workspace_stride = (limits.vocab_size + 7) / 8 * 8;
  layout.result_count = static_cast<size_t>(limits.max_logit_rows);
  // The longest history with everything suppressed, and the many that have nothing of the kind.
  layout.room.bytes = SamplingUpload::MaxBytes(static_cast<size_t>(limits.max_positions),
                                               std::max(vocab, kLeastSuppressed), kMaxBiases) +
                      layout.result_count * SamplingUpload::MaxBytes(0, 0, 0);
  const size_t workspace = static_cast<size_t>(layout.room.workspace_rows) *
                           static_cast<size_t>(layout.workspace_stride) * sizeof(float);
  layout.adjusted = 0;
  layout.seen = Rounded(workspace);
  layout.adjusted_quads = layout.seen + Rounded(workspace);
  layout.scratch = layout.adjusted_quads + Rounded(workspace / sizeof(float) / 4);
  layout.requests =
      layout.scratch +
      Rounded(std::min<size_t>(kMaxSamplesAtOnce, layout.result_count) * sizeof(SampleScratch));
  layout.results = layout.requests + Rounded(layout.room.bytes);
  layout.total = layout.results + layout.result_count * sizeof(SampleResult);
  return layout;
}

size_t DeviceSampler::DeviceBytes(const StepLimits& limits) { return LayoutFor(limits).total; }

size_t CudaKvCopier::IdBytes(int chunks) {
  return Rounded(static_cast<size_t>(chunks) * sizeof(int32_t));
}

int CudaKvCopier::ChunksAtOnce(size_t chunk_bytes) {
  return static_cast<int>(std::max<size_t>(1, kStagingBytes / chunk_bytes));
}

size_t CudaKvCopier::LaneBytes(size_t chunk_bytes) {
  const int chunks = ChunksAtOnce(chunk_bytes);
  return IdBytes(chunks) + Rounded(static_cast<size_t>(chunks) * chunk_bytes);
}

size_t CudaKvCopier::DeviceBytes(size_t chunk_bytes) {
  return 2 * LaneBytes(chunk_bytes) + 2 * kProbeBytes;
}

QuantizedWorkspaces::Sizes QuantizedWorkspaces::For(const StepLimits& limits) {
  Sizes sizes;
  if (limits.quantized_columns == 0) return sizes;
  // A row tile of the widest matrix at least, of gate and of up.
  sizes.dequantized = std::max(kDequantizedBytes, static_cast<size_t>(limits.quantized_columns) *
                                                      2 * kQuantizedTileRows * sizeof(uint16_t));
  if (limits.reordered_columns) {
    sizes.reordered = static_cast<size_t>(limits.max_rows) *
                      static_cast<size_t>(limits.quantized_columns) * sizeof(uint16_t);
  }
  return sizes;
}

std::vector<size_t> ExpertWorkspace::PartBytes(const StepLimits& limits) {
  const auto pairs = static_cast<int>(
      ExpertScratch::For(limits.max_rows, limits.experts_per_token, /*at_once=*/true).results);
  const size_t words = Rounded(static_cast<size_t>(pairs) * sizeof(int32_t));
  // The smallest tiles are the most.
  const int tiles = ExpertTileCount(pairs, limits.experts, kLeastTileRows);
  return {Rounded(static_cast<size_t>(limits.experts) * sizeof(unsigned)),
          words,
          words,
          words,
          words,
          Rounded(static_cast<size_t>(tiles) * sizeof(ExpertTile)),
          Rounded(static_cast<size_t>(limits.fetched_expert_bytes))};
}

size_t ExpertWorkspace::DeviceBytes(const StepLimits& limits) {
  if (limits.experts == 0) return 0;
  size_t sum = 0;
  for (const size_t part : PartBytes(limits)) sum += part;
  return sum;
}

}  // namespace baton::backend::cuda
