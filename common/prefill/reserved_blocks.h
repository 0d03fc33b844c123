// Blocks for KV that comes from elsewhere and goes into the prefix cache.
#ifndef BATON_COMMON_PREFILL_RESERVED_BLOCKS_H_
#define BATON_COMMON_PREFILL_RESERVED_BLOCKS_H_

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "common/kv/radix_cache.h"

namespace baton::prefill {

// Held blocks for all of `tokens`, which are whole blocks: the first `first_block` are the cache's,
// pinned, as without them what comes could not be inserted; the rest are free ones, for which
// cached blocks are evicted. Those from `window_begin` on have window pages. nullopt if that is not
// possible. REQUIRES: first_block are cached.
std::optional<kv::BlockLease> ReserveBlocks(kv::BlockPool& pool, kv::RadixCache& cache,
                                            kv::PrefixKey root, absl::Span<const int32_t> tokens,
                                            int first_block, int window_begin, int block_tokens);

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_RESERVED_BLOCKS_H_
