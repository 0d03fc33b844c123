// Which KV blocks hold which prompts: a compressed radix tree over whole blocks of tokens, one root
// per namespace (root PrefixKey; see prefix_key.h).
//
// The algorithm is SGLang's RadixAttention (arXiv 2312.07104, radix_cache.py), with two changes.
// Locks are the leases themselves: a block with a reference besides the tree's stays, and so do all
// blocks before it; there are no lock counts. And the pool notifies the tree when blocks become
// shared or unshared, so the tree always knows its evictable leaves without a walk.
//
// Retention. A prefix may be retained with a priority, 1 or more, and a time to live that every use
// renews; other blocks have priority 0. Eviction goes by priority, then by last use. It is soft:
// retained blocks are evicted where nothing else is left. At most a share of the pool is retained:
// beyond it, the retained prefixes of least priority, and of these the least recently used, are
// demoted to priority 0, from their ends. The idea is TensorRT-LLM's (KvCacheRetentionConfig); the
// bound is ours.
//
// Windows (block_pool.h). A prefix is usable only with the window pages of its last
// shape().window_blocks blocks; the tree may have lost those of others. So a match ends at the
// longest usable length. Where the tree's block lacks window pages that the caller's block of the
// same tokens has, Insert replaces the tree's block. Evict still goes by priority and last use.
// Among blocks of one last use, it first frees the window pages inside edges, which only a prompt
// that leaves the path there would need; then it evicts the ends of paths, and what is not usable
// without them; last it frees the window pages before the ends of edges, where prompts have ended
// or parted.
//
// States (block_pool.h). Where a model has recurrent layers, window pages are snapshots of a state,
// which few blocks have: a prefix is usable where it ends with one. All of the above holds, with
// two more rules. Snapshots take at most a share of the pool: beyond it those go that are not
// retained, by the order in which Evict frees window pages; retained ones go for retained ones
// only, and what is in use later. And a snapshot that another one further down has *superseded*
// goes before all others: between the two no path parted and no use ended, so what returns goes on
// from the later one. Evict begins with the blocks behind the last snapshot of a path. Where blocks
// are retained, it is up to a snapshot.
//
// Ownership, for a prompt of blocks [0, n) that is matched, computed and inserted:
//   [0, matched)        the tree's blocks; the Match's lease shares them
//   [matched, present)  the caller's duplicates of blocks inserted meanwhile; the tree keeps the
//                       blocks it has, the caller's are freed with the caller's lease
//   [present, full)     the caller's blocks; Insert makes the tree share them
//   [full, n)           the partial last block, which only the caller has
//
// Thread: owned by the loop that owns the pool; unsynchronized.
#ifndef BATON_COMMON_KV_RADIX_CACHE_H_
#define BATON_COMMON_KV_RADIX_CACHE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/kv/block_pool.h"
#include "common/kv/prefix_key.h"

namespace baton::kv {

struct Match {
  // kActive; while it lives, none of these blocks is evicted. Only the last window_blocks of them
  // have window pages.
  BlockLease blocks;
  int tokens = 0;  // blocks.size() * block_tokens
};

// A change for the router's index: `key` is now, or is no longer, cached here. A snapshot has the
// SnapshotKey of its block's key.
struct CacheChange {
  bool added = false;
  PrefixKey key = 0;
};

struct Retention {
  int priority = 0;  // 0: none
  absl::Duration ttl;
};

struct RetentionLimits {
  double max_share = 0.25;             // of the pool's blocks
  const Clock& clock = Clock::Real();  // must outlive the cache
  double max_snapshot_share = 0.5;     // of the pool's pages, but room for two snapshots
  // Superseded snapshots go first; else they go as others do.
  bool superseded_first = true;
};

class RadixCache {
 public:
  static constexpr int kNoLimit = std::numeric_limits<int>::max();

  // The pool must outlive the cache. The cache takes the pool's share listener.
  // REQUIRES: block_tokens > 0.
  RadixCache(BlockPool& pool, int block_tokens, const RetentionLimits& limits = {});
  ~RadixCache();
  RadixCache(const RadixCache&) = delete;
  RadixCache& operator=(const RadixCache&) = delete;

  // Returns the longest usable prefix of `tokens` in whole blocks, at most max_tokens long,
  // compared by tokens, not by keys. The path becomes the most recently used. To leave at least one
  // prompt token to compute, as sampling needs, pass tokens.size() - 1. O(tokens + blocks); may
  // split an edge. REQUIRES: max_tokens >= 0.
  Match MatchPrefix(PrefixKey root, absl::Span<const int32_t> tokens, int max_tokens);

  // Returns MatchPrefix(…).tokens without locking the blocks or marking the path as used.
  int Peek(PrefixKey root, absl::Span<const int32_t> tokens, int max_tokens = kNoLimit) const;
  // How many blocks of `tokens` are cached, usable or not: where a path of the tree is left.
  int ReachedBlocks(PrefixKey root, absl::Span<const int32_t> tokens) const;
  // Whether `tokens`, whole blocks, are cached with the window pages of their last `blocks` blocks.
  bool HasWindows(PrefixKey root, absl::Span<const int32_t> tokens, int blocks) const;
  // The lengths, in blocks, of the snapshots on the cached path of `tokens`, descending. REQUIRES:
  // the pool has states. O(tokens).
  std::vector<int> Snapshots(PrefixKey root, absl::Span<const int32_t> tokens) const;
  // The blocks of the cached prefix `tokens`, whole blocks, usable or not, and the window pages
  // that the tree has of those from `window_begin` on. Locks and uses them as MatchPrefix does.
  // REQUIRES: all of it is cached.
  BlockLease Lock(PrefixKey root, absl::Span<const int32_t> tokens, int window_begin);

  // Shares the whole blocks of `tokens` that the tree lacks, as kCached; blocks[i] must hold the
  // finished KV of tokens [i * block_tokens, (i + 1) * block_tokens). The path becomes the most
  // recently used. REQUIRES: blocks of the cache's pool; blocks.size() >= tokens.size() /
  // block_tokens; no block that the tree takes is in it already.
  void Insert(PrefixKey root, absl::Span<const int32_t> tokens, const BlockLease& blocks);

  // Retains the whole blocks of `tokens` that are cached, as far as there is room within the bound,
  // and marks them as used. Blocks that are retained already keep the higher priority and the
  // longer time to live. O(tokens + blocks), and O(log nodes) per demoted prefix; may split edges.
  // REQUIRES: 0 <= priority, 0 < ttl.
  void Retain(PrefixKey root, absl::Span<const int32_t> tokens, const Retention& retention);
  // Drops what has expired first.
  int retained_block_count();
  int retained_limit() const { return retained_limit_; }

  // Frees at least min(page_count, evictable_page_count()) pages and returns how many: always those
  // of least retention priority, and of these the least recently used, among the unlocked last
  // blocks of paths and the unlocked window pages. Where a block is one page, not more than that.
  // O(log leaves) per leaf, O(1) per block. REQUIRES: page_count >= 0.
  int Evict(int page_count);

  // The same of snapshots alone, of at most that retention priority, and perhaps fewer pages.
  // REQUIRES: the pool has states.
  int EvictSnapshots(int page_count, int most_priority = kNoLimit);
  // The same for a new snapshot, of a path that is to be retained with that priority: while those
  // that are cached take less than their share, of anything.
  int EvictForSnapshot(int page_count, int priority = 0) {
    return window_count_ < snapshot_limit_ ? Evict(page_count)
                                           : EvictSnapshots(page_count, priority);
  }
  int snapshot_count() const { return window_count_; }

  // Exactly how many pages Evict could free now. O(1).
  int evictable_page_count() const {
    return evictable_block_count_ * pool_.shape().full_pages +
           evictable_window_count_ * pool_.shape().window_pages;
  }
  int block_count() const { return block_count_; }

  // Evicts all that can be evicted and returns how many blocks; locked blocks, and those before
  // them on their paths, stay.
  int Clear();

  // Called for each block, in order: added when it becomes cached, from the root outwards; removed
  // when it is evicted, from the tail inwards. Must not call back into the cache. Not called for
  // blocks that are cached already (see Keys), nor by the destructor.
  void SetListener(std::function<void(CacheChange)> listener);
  // The keys of all cached blocks and snapshots, parents before children: what changes build on.
  std::vector<PrefixKey> Keys() const;

  // Ends the process unless tree, locks, counts, order of use and the pool agree. O(tokens cached).
  void CheckIntegrity() const;

 private:
  struct Node;
  struct Reach;
  // The place of a cached block in the tree.
  struct Position {
    Node* node = nullptr;
    int index = 0;  // of the block in the node's edge
  };

  Reach Walk(PrefixKey root, absl::Span<const int32_t> tokens) const;
  // The reach of the tokens, as far as it is usable.
  Reach Usable(const Reach& reach, PrefixKey root, absl::Span<const int32_t> tokens) const;
  BlockLease SharePath(Node* end, int window_begin);
  std::unique_ptr<Node> NewNode(Node* parent);
  Node* ReachedNode(const Reach& reach);
  Node* SplitEdge(Node* node, int index);
  void Touch(Node* node);
  Node* AddChild(Node* parent, absl::Span<const int32_t> first_block);
  void Extend(Node* node, absl::Span<const int32_t> tokens, BlockLease blocks);
  int TrimLeaf(Node* leaf, int pages);
  void RemoveLeaf(Node* leaf);

  void OnShared(BlockId block, bool shared);
  bool IsLocked(BlockId block) const;
  int LockedEnd(const Node& node, int end) const;
  void SetPositions(Node* node, int begin);
  void Settle(Node* node);
  void SettleOrder(Node* node);

  // radix_windows.cc
  int UsableBlocks(const Reach& reach) const;
  bool HasWindows(const Node* node, int index, int blocks) const;
  bool IsUsable(const Node* node, int index) const;
  void TakeWindows(const Reach& reach, const BlockLease& blocks);
  int TailBegin(const Node& node) const;
  bool HasFreeWindow(const Node& node, int index) const;
  int DropFreeWindows(Node* node, bool tail, int pages);
  void OnWindowShared(BlockId block, bool shared);
  void CountWindows(Node* node);
  void SettleWindows(Node* node);
  void SettleWindowOrder(Node* node);
  void CheckWindows(const Node& node) const;
  void BoundSnapshots();
  bool EndsInSnapshot(const Node& node) const;
  bool IsSuperseded(const Node& node) const;
  int SupersededOf(const Node& node) const;
  void Tell(bool added, const Node& node, int index);

  // radix_retention.cc
  int MakeRetainedRoom(int wanted, int priority, uint64_t own_use);
  void ExpireRetention();
  void SetRetention(Node* node, int priority, absl::Duration ttl);
  void ClearRetention(Node* node);
  void SettleRetention(Node* node);

  void CheckEdge(const Node& node) const;
  void CheckLocks(const Node& node) const;
  void CheckRetention(const Node& node) const;

  BlockPool& pool_;
  const int block_tokens_;
  absl::flat_hash_map<PrefixKey, std::unique_ptr<Node>> roots_;
  std::vector<Position> positions_;  // by BlockId
  // By retention priority, then last use.
  using Order = std::pair<int, uint64_t>;
  // Leaves with an unlocked tail. A use touches one path, of which at most one node is a leaf, so
  // no two leaves have the same last use.
  std::map<Order, Node*> evictable_leaves_;
  // Nodes with window pages that only the tree refers to, inside their edges and before the ends.
  // The nodes of one path can have one last use: then their numbers decide, not their addresses, so
  // that equal histories evict the same pages.
  using WindowOrder = std::pair<Order, uint64_t>;
  std::pair<WindowOrder, WindowOrder> WindowOrdersOf(const Node& node) const;  // insides, tails
  std::map<WindowOrder, Node*> free_insides_, free_tails_;
  const Clock& clock_;
  const int retained_limit_;  // blocks
  int retained_block_count_ = 0;
  std::set<std::pair<absl::Duration, Node*>> expiries_;  // of the retained nodes
  // Retained nodes without a retained child, in the order of their demotion. Only while several
  // nodes are changed can two have the same priority and last use.
  std::set<std::tuple<int, uint64_t, Node*>> retained_ends_;
  uint64_t last_use_ = 0;    // a logical clock: one tick per use
  uint64_t node_count_ = 0;  // nodes ever made
  int block_count_ = 0;
  int evictable_block_count_ = 0;
  int evictable_window_count_ = 0;  // blocks with window pages that only the tree refers to
  int window_count_ = 0;            // blocks with window pages
  int superseded_count_ = 0;        // snapshots, in use or not
  const int snapshot_limit_;
  const bool superseded_first_;
  std::function<void(CacheChange)> listener_;
};

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_RADIX_CACHE_H_
