#include "common/prefill/reserved_blocks.h"

#include <utility>

#include "common/base/check.h"

namespace baton::prefill {

std::optional<kv::BlockLease> ReserveBlocks(kv::BlockPool& pool, kv::RadixCache& cache,
                                            kv::PrefixKey root, absl::Span<const int32_t> tokens,
                                            int first_block, int block_tokens) {
  const int missing = static_cast<int>(tokens.size()) / block_tokens - first_block;
  kv::Match match = cache.MatchPrefix(root, tokens, first_block * block_tokens);
  BATON_CHECK_EQ(match.blocks.size(), first_block);
  const int lacking = missing - pool.counts().free;
  if (lacking > 0) {
    if (cache.evictable_block_count() < lacking) return std::nullopt;
    cache.Evict(lacking);
  }
  absl::StatusOr<kv::BlockLease> fresh = pool.Acquire(missing, kv::BlockUse::kHeld);
  BATON_CHECK(fresh.ok()) << fresh.status();
  kv::BlockLease blocks = std::move(match.blocks);
  blocks.SetUse(kv::BlockUse::kHeld);
  blocks.Append(*std::move(fresh));
  return blocks;
}

}  // namespace baton::prefill
