#include "common/backend/cuda/steps/step_recorder.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/base/check.h"
#include "common/base/log.h"

namespace baton::backend::cuda {
namespace {

// Two blocks of the split kernel live on a multiprocessor at a time; more are launched, so that
// those with the longer work find others to fill the gap.
constexpr int kSplitBlocksAMultiprocessor = 8;

// The row tiles of one row.
int RowTiles(const AttentionHeads& heads) { return (heads.group() + kRowTile - 1) / kRowTile; }

}  // namespace

void BatchBounds::Check(const CudaBatch& batch) const {
  BATON_CHECK(batch.least_token >= 0 && batch.greatest_token < tokens)
      << "tokens from " << batch.least_token << " to " << batch.greatest_token;
  BATON_CHECK(batch.least_block >= 0 && batch.greatest_block < blocks)
      << "blocks from " << batch.least_block << " to " << batch.greatest_block;
  BATON_CHECK_LT(batch.last_position, positions);
}

void BatchBounds::Narrow(const BatchBounds& other) {
  tokens = std::min(tokens, other.tokens);
  blocks = std::min(blocks, other.blocks);
  positions = std::min(positions, other.positions);
}

int PaddedRows(int rows, int most) {
  BATON_CHECK(rows >= 1 && rows <= most) << rows << " rows of " << most;
  int padded = rows;
  if (rows <= 8) {
    padded = static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
  } else {
    const int apart = rows <= 32 ? 8 : rows <= 64 ? 16 : rows <= 256 ? 32 : 64;
    padded = (rows + apart - 1) / apart * apart;
  }
  return std::min(padded, most);
}

int SplitBlocks(int items, int kv_heads, int multiprocessors) {
  const int enough = std::max(1, kSplitBlocksAMultiprocessor * multiprocessors / kv_heads);
  return static_cast<int>(std::min(std::bit_ceil(static_cast<unsigned>(std::max(1, items))),
                                   std::bit_ceil(static_cast<unsigned>(enough))));
}

CudaStepRecorder::CudaStepRecorder(const StepLimits& limits, BatchUpload& upload, StepState& state,
                                   Runtime& runtime, Stream stream)
    : most_rows_(std::min({limits.max_rows, limits.max_sequences, limits.max_logit_rows})),
      limits_(limits),
      heads_(limits.heads()),
      upload_(upload),
      state_(state),
      runtime_(runtime),
      stream_(stream) {}

PaddedBatch CudaStepRecorder::Upload(const RaggedBatch& batch) {
  state_.draws = nullptr;
  const auto rows = static_cast<int>(batch.tokens.size());
  if (rows > most_rows_) return {};
  const int padded = PaddedRows(rows, most_rows_);
  std::unique_ptr<CudaBatch> uploaded = upload_.UploadPadded(batch, padded);
  if (uploaded == nullptr) return {};
  const int splits = uploaded->items.front().split_items / RowTiles(heads_.front());
  const std::vector<int> blocks = BlocksOf(splits);
  for (size_t kind = 0; kind < blocks.size(); ++kind) {
    uploaded->items[kind].split_blocks = blocks[kind];
  }
  if (uploaded->d_draws != nullptr) {
    state_.draws = batch.draws.data();
    state_.d_draws = uploaded->d_draws;
  }
  if (!batch.drawn.empty()) state_.drawn_tokens = uploaded->d_tokens;
  return {std::move(uploaded), padded};
}

// A function of the number of splits, rounded up to a power of two: so steps of one number of rows
// differ in no more kinds than with the heads of any layer alone.
std::vector<int> CudaStepRecorder::BlocksOf(int splits) const {
  const auto rounded = static_cast<int>(std::bit_ceil(static_cast<unsigned>(std::max(1, splits))));
  std::vector<int> blocks;
  for (const AttentionHeads& heads : heads_) {
    blocks.push_back(SplitBlocks(rounded * RowTiles(heads), heads.kv_heads,
                                 runtime_.properties().multiprocessors));
  }
  return blocks;
}

std::vector<StepRecorder::Kind> CudaStepRecorder::Kinds() const {
  std::vector<Kind> kinds;
  for (int rows = most_rows_; rows > 0; --rows) {
    if (PaddedRows(rows, most_rows_) != rows) continue;
    std::vector<int> last;
    for (int context = 0; context < limits_.max_positions; context += kSplitTokens) {
      std::vector<int> blocks = BlocksOf(rows * (context / kSplitTokens + 1));
      if (blocks != last) kinds.push_back({rows, context});
      last = std::move(blocks);
    }
  }
  return kinds;
}

void CudaStepRecorder::Run(const DeviceBatch& batch, absl::FunctionRef<void()> enqueue) {
  const auto& cuda = static_cast<const CudaBatch&>(batch);
  BATON_CHECK(cuda.items.front().d_split_range != nullptr) << "a batch without padding";
  std::vector<int> kind = {cuda.rows};
  for (const CudaBatch::Items& items : cuda.items) kind.push_back(items.split_blocks);
  const auto [found, first] = recorded_.try_emplace(std::move(kind));
  Recorded& recorded = found->second;
  if (first) {
    state_.bounds = {};
    enqueue();
    recorded.bounds = state_.bounds;
    return;
  }
  recorded.bounds.Check(cuda);
  if (recorded.graph == nullptr && !full_) {
    recorded.graph = runtime_.Capture(stream_, enqueue);
    if (recorded.graph == nullptr) NoteFull();
  }
  if (recorded.graph != nullptr) {
    if (recorded.graph->Launch(stream_)) return;
    NoteFull();
  }
  enqueue();
}

void CudaStepRecorder::NoteFull() {
  if (full_) return;
  full_ = true;
  const auto graphs = std::count_if(recorded_.begin(), recorded_.end(),
                                    [](const auto& kind) { return kind.second.graph != nullptr; });
  BATON_LOG(Warning) << "no device memory for more than " << graphs
                     << " CUDA graphs: decode steps without one are enqueued kernel by kernel, "
                        "which is slower; a lower --gpu-memory-utilization leaves more";
}

}  // namespace baton::backend::cuda
