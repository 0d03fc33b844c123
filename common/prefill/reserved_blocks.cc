#include "common/prefill/reserved_blocks.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace baton::prefill {

std::optional<kv::BlockLease> ReserveBlocks(kv::BlockPool& pool, kv::RadixCache& cache,
                                            kv::PrefixKey root, absl::Span<const int32_t> tokens,
                                            int first_block, int window_begin, int block_tokens) {
  const int missing = static_cast<int>(tokens.size()) / block_tokens - first_block;
  kv::BlockLease blocks =
      cache.Lock(root, tokens.first(static_cast<size_t>(first_block * block_tokens)),
                 pool.shape().FirstWindowBlock(first_block));
  const int first_windowed = std::clamp(window_begin - first_block, 0, missing);
  const int64_t pages = pool.shape().PagesOf(missing, missing - first_windowed);
  if (const int lacking = static_cast<int>(pages) - pool.counts().free; lacking > 0) {
    if (cache.evictable_page_count() < lacking) return std::nullopt;
    cache.Evict(lacking);
  }
  absl::StatusOr<kv::BlockLease> fresh =
      pool.Acquire(missing, kv::BlockUse::kHeld, first_windowed, missing);
  BATON_CHECK(fresh.ok()) << fresh.status();
  blocks.SetUse(kv::BlockUse::kHeld);
  blocks.Append(*std::move(fresh));
  return blocks;
}

}  // namespace baton::prefill
