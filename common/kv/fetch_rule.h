// When cached KV of another worker is fetched instead of computed: what workers decide by, and
// routers foresee.
#ifndef BATON_COMMON_KV_FETCH_RULE_H_
#define BATON_COMMON_KV_FETCH_RULE_H_

#include <cstdint>

#include "common/kv/block_pool.h"

namespace baton::kv {

// Fewer blocks are computed sooner than asked for.
inline constexpr int kLeastFetchedBlocks = 4;
// The share of a worker's pool, for all of its fetches together.
inline constexpr double kMostFetchedShare = 0.25;
// A load from KV tiers that is expected to take more than this share of computing is not begun: it
// would gain less than its time varies.
inline constexpr double kMostLoadShare = 0.9;
// How many blocks a worker with a pool of total_pages would fetch, of which it has `cached` and
// the holder `held`, both from the prompt's start. 0: none.
inline int BlocksToFetch(int held, int cached, int total_pages, const BlockShape& shape = {}) {
  const int missing = held - cached;
  if (missing < kLeastFetchedBlocks) return 0;
  const int64_t pages = shape.PagesOf(missing, shape.window_blocks);
  return static_cast<double>(pages) <= kMostFetchedShare * total_pages ? missing : 0;
}

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_FETCH_RULE_H_
