// The part of PrefillScheduler that gives jobs their blocks, and what they compute to the cache.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/kv/snapshots.h"
#include "common/prefill/label_rows.h"
#include "common/prefill/scheduler.h"

namespace baton::prefill {

// Allocates all of the job's blocks, or none and returns false.
bool PrefillScheduler::TryAllocate(PrefillJob& job, int spare_pages) {
  kv::Match match;
  if (const int matchable = MatchableBlocks(job); matchable > 0) {
    match = cache_->MatchPrefix(job.root, job.tokens, matchable * options_.block_tokens);
  }
  const int missing = BlocksFor(job.size()) - match.blocks.size();
  // What another job holds, too, is not free when this one has left it behind.
  const int windowed = std::min(missing, WindowBlocksOf(job) - match.blocks.OwnWindows());
  const int labels = job.scoring ? LabelBlocks(job, options_.block_tokens) : 0;
  const int64_t pages =
      pool_.shape().PagesOf(missing, windowed) + int64_t{labels} * pool_.shape().pages();
  const int free = pool_.counts().free;
  // It evicts nothing unless that is enough: a waiting job must not empty the cache for others.
  const int evictable = cache_ != nullptr ? cache_->evictable_page_count() : 0;
  if (pages + spare_pages > free + evictable) return false;
  if (pages > free) cache_->Evict(static_cast<int>(pages) - free);
  // A spare for a state lies at the end.
  const int window_begin = pool_.shape().recurrent ? missing - windowed : 0;
  absl::StatusOr<kv::BlockLease> fresh =
      pool_.Acquire(missing, kv::BlockUse::kActive, window_begin, window_begin + windowed);
  if (!fresh.ok()) return false;
  if (job.scoring != nullptr) {
    absl::StatusOr<kv::BlockLease> of_labels = pool_.Acquire(labels, kv::BlockUse::kActive);
    BATON_CHECK(of_labels.ok()) << of_labels.status();
    job.scoring->label_blocks = *std::move(of_labels);
  }
  job.window_end = match.blocks.size() + windowed;
  if (pool_.shape().recurrent) SetSnapshots(job, match.blocks.size());
  job.blocks = std::move(match.blocks);
  job.blocks.Append(*std::move(fresh));
  job.cached_tokens = match.tokens;
  return true;
}

void PrefillScheduler::SetSnapshots(PrefillJob& job, int matched_blocks) const {
  job.snapshots.clear();
  if (cache_ == nullptr) return;
  const int matchable = std::min(job.size() - 1, job.cacheable_tokens()) / options_.block_tokens;
  const auto reusable =
      absl::MakeConstSpan(job.tokens).first(static_cast<size_t>(matchable * options_.block_tokens));
  const int retained =
      std::min(matchable, job.retention.SnapshotBlock(*cache_, options_.block_tokens));
  for (const int blocks : {matchable, retained, cache_->ReachedBlocks(job.root, reusable)}) {
    if (blocks > matched_blocks)
      kv::AddSnapshot(blocks, options_.tier_segment_blocks, job.snapshots);
  }
}

void PrefillScheduler::PlaceStates(const Chunk& chunk) {
  if (!pool_.shape().recurrent) return;
  kv::PlaceStates(pool_, cache_, chunk.begin, chunk.end, options_.block_tokens,
                  chunk.job->snapshots, chunk.job->retention.retention.priority, chunk.job->blocks);
}

void PrefillScheduler::InsertIntoCache(const PrefillJob& job) {
  if (cache_ == nullptr) return;
  const int tokens = std::min(job.computed_tokens, job.cacheable_tokens());
  const auto computed = absl::MakeConstSpan(job.tokens).first(tokens);
  cache_->Insert(job.root, computed, job.blocks);
  job.retention.Apply(*cache_, job.root, computed);
}

void PrefillScheduler::MoveWindows(PrefillJob& job) {
  if (!pool_.shape().windowed()) return;
  const int computed = job.computed_tokens / options_.block_tokens;
  job.blocks.DropWindows(pool_.shape().FirstWindowBlock(computed));
  if (pool_.shape().recurrent) {
    kv::TakeSpare(pool_, cache_, job.computed_tokens, options_.block_tokens, job.blocks);
    return;
  }
  const int held = WindowBlocksOf(job) - pool_.shape().window_blocks;
  const int wanted = std::min(job.blocks.size(), computed + held);
  if (job.window_end >= wanted) return;
  const int lacking = (wanted - job.window_end) * pool_.shape().window_pages - pool_.counts().free;
  if (lacking > 0 && cache_ != nullptr) {
    cache_->Evict(std::min(lacking, cache_->evictable_page_count()));
  }
  job.window_end = job.blocks.AddWindows(job.window_end, wanted);
}

}  // namespace baton::prefill
