// Where sequences of recurrent models leave their states while a prompt is computed.
//
// A sequence holds the pages of the state that its next chunk goes on from, and a spare: pages that
// lie ready at a later block of its own. Where a chunk ends, the state goes to the spare. A state
// that a later prompt may go on from is a *snapshot*: the window pages of a cached block. Chunks
// leave them where they end, and within a chunk where its caller wants them, if there is room.
#ifndef BATON_COMMON_KV_SNAPSHOTS_H_
#define BATON_COMMON_KV_SNAPSHOTS_H_

#include <vector>

#include "absl/types/span.h"
#include "common/kv/block_pool.h"
#include "common/kv/radix_cache.h"

namespace baton::kv {

// Snapshots are named by their blocks, the last one before them.
//
// These REQUIRE a pool with states (BlockShape::recurrent). `cache` may be null.

// Adds a snapshot behind so many blocks to those that a prompt is to leave, unless it is among
// them; and, where KV tiers keep states behind segments of so many blocks (0: there are none), the
// last such place before it.
void AddSnapshot(int blocks, int segment_blocks, std::vector<int>& snapshots);

// Whether a sequence that has computed so many tokens has a spare, or needs none, because its state
// is in its last block.
bool HasSpare(int computed_tokens, int block_tokens, const BlockLease& blocks);
// The same, or it gets one: cached blocks are evicted if need be.
bool TakeSpare(BlockPool& pool, RadixCache* cache, int computed_tokens, int block_tokens,
               BlockLease& blocks);

// Prepares a chunk of the tokens [begin, end): its last block gets the spare and, as far as there
// is room, those of `snapshots` that end within the chunk get pages, too; what was not used for
// longest makes room, and no snapshot that is retained with more than `priority`, the prompt's.
// REQUIRES: HasSpare, of `begin` tokens.
void PlaceStates(BlockPool& pool, RadixCache* cache, int begin, int end, int block_tokens,
                 absl::Span<const int> snapshots, int priority, BlockLease& blocks);

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_SNAPSHOTS_H_
