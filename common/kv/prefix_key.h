// Names for prefixes of whole blocks: key[i] = H(key[i-1], tokens of block i). Routers and workers
// link this code and so name the same prefix alike.
// Keys route requests. They never decide that KV may be reused: that takes equal tokens (see
// radix_cache.h), so that a collision costs a miss, never a wrong answer.
#ifndef BATON_COMMON_KV_PREFIX_KEY_H_
#define BATON_COMMON_KV_PREFIX_KEY_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::kv {

// The low 64 bits of an XXH3-128.
using PrefixKey = uint64_t;

// key[-1], the namespace: prompts under different roots share nothing. Lengths are hashed too, so
// ("ab", "c") and ("a", "bc") differ.
PrefixKey RootPrefixKey(uint64_t model_fingerprint, absl::string_view cache_salt,
                        absl::string_view adapter);

// Hashes the parent and the tokens, little-endian.
PrefixKey NextPrefixKey(PrefixKey parent, absl::Span<const int32_t> block_tokens);

// One key per full block of `tokens`; tokens after the last full block are ignored.
// REQUIRES: block_tokens > 0.
std::vector<PrefixKey> PrefixKeys(PrefixKey root, absl::Span<const int32_t> tokens,
                                  int block_tokens);

// By which a worker reports a snapshot of a state (block_pool.h), beside the key of its block.
PrefixKey SnapshotKey(PrefixKey block);

// By which a worker reports a segment of a prompt that its KV tiers have, beside the keys that its
// prefix cache has. `end`: the key of the segment's last block. Segments of different lengths have
// different keys.
PrefixKey TierKey(PrefixKey end, int segment_tokens);
// That one worker reports at a time; a router keeps about 12 bytes of each.
inline constexpr int64_t kMostTierKeys = 1 << 20;

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_PREFIX_KEY_H_
