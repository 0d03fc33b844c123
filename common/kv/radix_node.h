// A node of RadixCache with the edge that leads to it. Only radix_cache*.cc include this.
#ifndef BATON_COMMON_KV_RADIX_NODE_H_
#define BATON_COMMON_KV_RADIX_NODE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/types/span.h"
#include "common/kv/radix_cache.h"

namespace baton::kv {

// Lets a map keyed by vectors be searched with spans.
struct TokensHash {
  using is_transparent = void;
  size_t operator()(absl::Span<const int32_t> tokens) const {
    return absl::Hash<absl::Span<const int32_t>>()(tokens);
  }
};
struct TokensEqual {
  using is_transparent = void;
  bool operator()(absl::Span<const int32_t> a, absl::Span<const int32_t> b) const { return a == b; }
};

// All blocks of an edge have the same last use: a use that ends inside an edge splits it first.
struct RadixCache::Node {
  uint64_t number = 0;     // of all nodes ever made
  Node* parent = nullptr;  // null for a root, whose edge is empty
  PrefixKey root_key = 0;  // set for a root only
  std::vector<int32_t> tokens;
  std::vector<PrefixKey> keys;
  BlockLease blocks;  // the tree's own references, kCached
  // Keyed by the first block of the child's tokens.
  absl::flat_hash_map<std::vector<int32_t>, std::unique_ptr<Node>, TokensHash, TokensEqual>
      children;

  // Retention; see RadixCache::Retain.
  int priority = 0;  // 0: not retained
  absl::Duration ttl;
  absl::Duration expires_at;  // by the cache's clock
  int retained_children = 0;

  uint64_t last_use = 0;
  int locked_end = 0;        // one past the edge's last locked block
  int covered_children = 0;  // children with a lock in their edge or below
  // Has had two children at a time, or a use that left the path here, or ended.
  bool parted = false;
  int windows = 0;       // blocks of the edge with window pages
  int last_window = -1;  // the last one of them; -1: there is none
  // Those of them that only the tree refers to: before TailBegin(), and from there on.
  int free_insides = 0;
  int free_tails = 0;

  // The state under which the tree last counted this node; RadixCache::Settle() and
  // SettleRetention() update it.
  int reported_evictable = 0;
  bool reported_covered = false;                  // a lock in the edge or below
  std::optional<Order> reported_order;            // the key in evictable_leaves_, if there
  std::optional<absl::Duration> reported_expiry;  // in expiries_, if there
  std::optional<Order> reported_end;              // in retained_ends_, if there
  int reported_superseded = 0;                    // in superseded_count_
  std::optional<WindowOrder> reported_inside;     // in free_insides_, if there
  std::optional<WindowOrder> reported_tail;       // in free_tails_, if there

  PrefixKey EndKey() const { return parent == nullptr ? root_key : keys.back(); }
  // Blocks of the edge before this index cannot be evicted: a lock is on them or after them.
  int CoveredEnd() const { return covered_children > 0 ? blocks.size() : locked_end; }
};

// How far the tree agrees with some tokens.
struct RadixCache::Reach {
  Node* node = nullptr;  // the deepest node that agrees in at least one block; a root if none does;
                         // null if there is not even a root
  int edge_blocks = 0;   // how many blocks of that node's edge agree
  int blocks = 0;        // how many blocks agree from the root
};

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_RADIX_NODE_H_
