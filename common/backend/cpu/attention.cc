#include "common/backend/cpu/attention.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "common/base/check.h"

namespace baton::backend {
namespace {

// Splits of a shared tile that one task takes: each fetches what the next one needs.
constexpr int kSplitsPerTask = 4;

int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

SplitResult ResultAt(float* at, int64_t stride) {
  return {at, at + kTileColumns, at + 2 * kTileColumns, stride};
}

}  // namespace

struct AttentionRunner::Step {
  const CpuBatch& batch;
  const KvPool& kv;
  const AttentionArgs& args;
  KvPlace place;           // of the layer
  int group;               // query heads of a kv head
  int64_t value_stride;    // the values' dimensions rounded up to 16
  int64_t partial_floats;  // of one split of one tile
  int64_t query_bytes, scratch_bytes;
  const AttentionKernels& kernels;
};

void AttentionRunner::Run(const CpuBatch& batch, const KvPool& kv, const AttentionArgs& args) {
  BATON_CHECK_EQ(args.query_heads % kv.kv_heads, 0);
  const int group = args.query_heads / kv.kv_heads;
  BATON_CHECK_LE(group, kMostGroup);
  BATON_CHECK_EQ(kSplitTokens % kv.block_tokens, 0);
  BATON_CHECK_EQ(kv.block_tokens % 4, 0);
  const int64_t value_stride = RoundUp(kv.value_dim(), 16);
  const bool bf16 = bf16_ && kernels_.attention_bf16.attend != nullptr &&
                    (kv.format != KvFormat::kPlain || kv.dtype == DType::kBF16) &&
                    kv.block_tokens % 16 == 0 && kv.head_dim % 32 == 0 && kv.value_dim() % 32 == 0;
  const AttentionKernels& kernels = bf16 ? kernels_.attention_bf16 : kernels_.attention_f32;
  const Step step = {batch,
                     kv,
                     args,
                     kv.PlaceOf(args.layer),
                     group,
                     value_stride,
                     kTileColumns * (value_stride + 2),
                     RoundUp(kernels.query_bytes(kv.head_dim), 64),
                     RoundUp(kernels.scratch_bytes(kv.head_dim), 64),
                     kernels};
  PlanTiles(step);
  PlanTasks(step);
  const int64_t bytes = step.query_bytes + step.scratch_bytes + 2 * step.partial_floats * 4;
  workspaces_.resize(pool_.thread_count());
  for (Workspace& workspace : workspaces_) {
    if (static_cast<int64_t>(workspace.bytes.size()) >= bytes + 64) continue;
    workspace.bytes.resize(bytes + 64);
    const auto address = reinterpret_cast<uintptr_t>(workspace.bytes.data());
    workspace.aligned = workspace.bytes.data() + (64 - address % 64) % 64;
  }
  pool_.Run(static_cast<int>(tasks_.size()),
            [&](int task, int thread) { RunTask(step, tasks_[task], thread); });
}

void AttentionRunner::PlanTiles(const Step& step) {
  tiles_.clear();
  const int rows_a_tile = kTileColumns / step.group;
  const int window = step.args.window;
  const auto& sequences = step.batch.sequences();
  for (size_t s = 0; s < sequences.size(); ++s) {
    const CpuBatch::Sequence& sequence = sequences[s];
    const int64_t tokens = int64_t{sequence.context} + sequence.row_count;
    BATON_CHECK_GE(sequence.block_count(step.kv) * step.kv.block_tokens, tokens);
    for (int first = 0; first < sequence.row_count; first += rows_a_tile) {
      const int count = std::min(rows_a_tile, sequence.row_count - first);
      const int first_position = sequence.context + first;
      const int last_position = first_position + count - 1;
      const int first_seen = window > 0 ? std::max(0, first_position - window + 1) : 0;
      for (int head = 0; head < step.kv.kv_heads; ++head) {
        tiles_.push_back({static_cast<int>(s), head, first, count, first_seen / kSplitTokens,
                          last_position / kSplitTokens + 1, 0, 0});
      }
    }
  }
  // The longest first: at the end of the step no thread waits long for another.
  std::stable_sort(tiles_.begin(), tiles_.end(), [](const Tile& a, const Tile& b) {
    return a.end_split - a.first_split > b.end_split - b.first_split;
  });
}

void AttentionRunner::PlanTasks(const Step& step) {
  tasks_.clear();
  int64_t splits = 0;
  for (const Tile& tile : tiles_) splits += tile.end_split - tile.first_split;
  const int threads = pool_.thread_count();
  const int64_t fair_share = threads == 1 ? splits : std::max<int64_t>(1, splits / (4 * threads));
  int64_t partials = 0;
  int counters = 0;
  for (size_t t = 0; t < tiles_.size(); ++t) {
    Tile& tile = tiles_[t];
    const int count = tile.end_split - tile.first_split;
    if (count <= fair_share) {
      tasks_.push_back({static_cast<int>(t), tile.first_split, tile.end_split, false});
      continue;
    }
    tile.first_partial = partials;
    tile.counter = counters++;
    partials += count;
    const int splits_per_task =
        static_cast<int>(std::clamp<int64_t>(fair_share, 1, kSplitsPerTask));
    for (int split = tile.first_split; split < tile.end_split; split += splits_per_task) {
      tasks_.push_back(
          {static_cast<int>(t), split, std::min(split + splits_per_task, tile.end_split), true});
    }
  }
  const size_t floats = static_cast<size_t>(partials * step.partial_floats);
  if (partials_.size() < floats) partials_.resize(floats);
  if (static_cast<int>(unfinished_.size()) < counters) {
    unfinished_ = std::vector<std::atomic<int>>(counters);
  }
  for (const Task& task : tasks_) {
    const Tile& tile = tiles_[task.tile];
    if (task.shared) unfinished_[tile.counter] = tile.end_split - tile.first_split;
  }
}

SplitResult AttentionRunner::PartialOf(const Step& step, const Tile& tile, int split) {
  return ResultAt(
      partials_.data() + (tile.first_partial + split - tile.first_split) * step.partial_floats,
      step.value_stride);
}

void AttentionRunner::RunTask(const Step& step, const Task& task, int thread) {
  const Tile& tile = tiles_[task.tile];
  const CpuBatch::Sequence& sequence = step.batch.sequences()[tile.sequence];
  const int columns = tile.row_count * step.group;
  std::byte* query = workspaces_[thread].aligned;
  std::byte* scratch = query + step.query_bytes;
  float* results = reinterpret_cast<float*>(scratch + step.scratch_bytes);

  std::array<const float*, kTileColumns> q;
  for (int c = 0; c < columns; ++c) {
    const int64_t row = sequence.first_row + tile.first_row + c / step.group;
    const int64_t head = int64_t{tile.kv_head} * step.group + c % step.group;
    q[c] = static_cast<const float*>(step.args.q.data) + row * step.args.q.row_stride +
           head * step.kv.head_dim;
  }
  step.kernels.pack_query(q.data(), columns, step.kv.head_dim, step.args.scale, query);

  if (task.shared) {
    for (int split = task.first_split; split < task.end_split; ++split) {
      AttendSplit(step, tile, split, query, scratch, PartialOf(step, tile, split));
    }
    const int done = task.end_split - task.first_split;
    if (unfinished_[tile.counter].fetch_sub(done, std::memory_order_acq_rel) > done) return;
  }
  // The first split is the start of the sum; those behind it are added in order.
  SplitResult total = ResultAt(results, step.value_stride);
  const SplitResult next = ResultAt(results + step.partial_floats, step.value_stride);
  for (int split = tile.first_split; split < tile.end_split; ++split) {
    const SplitResult part = task.shared                 ? PartialOf(step, tile, split)
                             : split == tile.first_split ? total
                                                         : next;
    if (!task.shared) AttendSplit(step, tile, split, query, scratch, part);
    if (split == tile.first_split) {
      total = part;
    } else {
      kernels_.combine(part, columns, step.value_stride, total);
    }
  }
  Finish(step, tile, total);
}

void AttentionRunner::AttendSplit(const Step& step, const Tile& tile, int split, const void* query,
                                  void* scratch, const SplitResult& result) {
  const KvPool& kv = step.kv;
  const CpuBatch::Sequence& sequence = step.batch.sequences()[tile.sequence];
  const int first_position = sequence.context + tile.first_row;
  const int start = split * kSplitTokens;
  AttentionTile job;
  job.block_tokens = kv.block_tokens;
  job.element = static_cast<Element>(kv.dtype);
  job.codes = static_cast<Codes>(kv.format);
  job.row_bytes = kv.row_bytes();
  job.head_dim = kv.head_dim;
  job.value_dim = kv.value_dim();
  job.score_cap = step.args.score_cap;
  job.tokens = std::min(kSplitTokens, first_position + tile.row_count - start);
  job.query = query;
  job.columns = tile.row_count * step.group;
  job.scratch = scratch;
  job.result = result;

  std::array<int32_t, kTileColumns> first_seen, end_seen;
  for (int c = 0; c < RoundUp(job.columns, 16); ++c) {
    const int column = std::min(c, job.columns - 1);
    const int position = first_position + column / step.group;
    const int first = step.args.window > 0 ? position - step.args.window + 1 : 0;
    first_seen[c] = std::clamp(first - start, 0, kSplitTokens);
    end_seen[c] = std::clamp(position + 1 - start, 0, kSplitTokens);
  }
  job.first_seen = first_seen.data();
  job.end_seen = end_seen.data();

  std::array<const void*, kSplitTokens> k_blocks, v_blocks, next_k_blocks;
  const int64_t head_bytes = kv.head_bytes();
  const int32_t* const pages = sequence.Table(kv, step.place.table);
  const auto block_at = [&](int index) {
    return kv.Chunk(pages[index], step.place.slot) + tile.kv_head * head_bytes;
  };
  const int first_block = start / kv.block_tokens;
  const int64_t to_values = kv.latent_dim > 0 ? 0 : kv.kv_heads * head_bytes;
  for (int b = 0; b * kv.block_tokens < job.tokens; ++b) {
    k_blocks[b] = block_at(first_block + b);
    v_blocks[b] = block_at(first_block + b) + to_values;
  }
  const int next_block = first_block + kSplitTokens / kv.block_tokens;
  const int end_block = (first_position + tile.row_count - 1) / kv.block_tokens + 1;
  for (int b = 0; next_block + b < end_block && b * kv.block_tokens < kSplitTokens; ++b) {
    next_k_blocks[job.next_block_count++] = block_at(next_block + b);
  }
  job.k_blocks = k_blocks.data();
  job.v_blocks = v_blocks.data();
  job.next_k_blocks = next_k_blocks.data();
  step.kernels.attend(job);
}

void AttentionRunner::Finish(const Step& step, const Tile& tile, const SplitResult& total) {
  const CpuBatch::Sequence& sequence = step.batch.sequences()[tile.sequence];
  const Tensor& out = step.args.out;
  const auto* sinks =
      step.args.sinks == nullptr ? nullptr : static_cast<const float*>(step.args.sinks->data());
  for (int c = 0; c < tile.row_count * step.group; ++c) {
    const int64_t row = sequence.first_row + tile.first_row + c / step.group;
    const int64_t head = int64_t{tile.kv_head} * step.group + c % step.group;
    const int64_t at = row * out.row_stride + head * step.kv.value_dim();
    kernels_.finish(
        total.value + c * step.value_stride, total.sum[c],
        sinks == nullptr ? -std::numeric_limits<float>::infinity() : sinks[head] - total.max[c],
        step.kv.value_dim(), static_cast<Element>(out.dtype),
        static_cast<std::byte*>(out.data) + at * static_cast<int64_t>(SizeOf(out.dtype)));
  }
}

}  // namespace baton::backend
