#include "common/kv/snapshots.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::kv {

namespace {

// The block with the state behind so many tokens; -1: there is none yet.
int StateBlock(int tokens, int block_tokens) {
  return tokens == 0 ? -1 : (tokens - 1) / block_tokens;
}

}  // namespace

void AddSnapshot(int blocks, int segment_blocks, std::vector<int>& snapshots) {
  const int in_segments = segment_blocks > 0 ? blocks / segment_blocks * segment_blocks : 0;
  for (const int end : {blocks, in_segments}) {
    const bool added = std::find(snapshots.begin(), snapshots.end(), end - 1) != snapshots.end();
    if (end > 0 && !added) snapshots.push_back(end - 1);
  }
}

bool HasSpare(int computed_tokens, int block_tokens, const BlockLease& blocks) {
  const int state = StateBlock(computed_tokens, block_tokens);
  return state == blocks.size() - 1 || blocks.LastWindow() > state;
}

bool TakeSpare(BlockPool& pool, RadixCache* cache, int computed_tokens, int block_tokens,
               BlockLease& blocks) {
  if (HasSpare(computed_tokens, block_tokens, blocks)) return true;
  const int lacking = pool.shape().window_pages - pool.counts().free;
  if (lacking > 0) {
    if (cache == nullptr || cache->evictable_page_count() < lacking) return false;
    cache->Evict(lacking);
  }
  const int last = blocks.size() - 1;
  return blocks.AddWindows(last, last + 1) > last;
}

void PlaceStates(BlockPool& pool, RadixCache* cache, int begin, int end, int block_tokens,
                 absl::Span<const int> snapshots, int priority, BlockLease& blocks) {
  const int last = (end - 1) / block_tokens;
  if (!blocks.has_window(last)) {
    const int spare = blocks.LastWindow();
    BATON_CHECK_GT(spare, StateBlock(begin, block_tokens));
    blocks.MoveWindow(spare, last);
  }
  for (const int block : snapshots) {
    if (block < begin / block_tokens || block >= last || blocks.has_window(block)) continue;
    const int lacking = pool.shape().window_pages - pool.counts().free;
    if (lacking > 0 && (cache == nullptr || cache->EvictForSnapshot(lacking, priority) < lacking))
      continue;
    blocks.AddWindows(block, block + 1);
  }
}

}  // namespace baton::kv
