// The part of RadixCache that keeps the window pages of cached blocks; see radix_cache.h.
#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/kv/radix_cache.h"
#include "common/kv/radix_node.h"

namespace baton::kv {

// The longest usable length of what was reached, in blocks.
int RadixCache::UsableBlocks(const Reach& reach) const {
  if (!pool_.shape().windowed() || reach.blocks == 0) return reach.blocks;
  int usable = reach.blocks;
  // Backwards: from a length that lacks window pages to the next shorter one that may not.
  const Node* node = reach.node;
  int index = reach.edge_blocks;
  while (usable > 0 && !IsUsable(node, index)) {
    --usable;
    --index;
    while (index == 0 && node->parent != nullptr && node->parent->parent != nullptr) {
      node = node->parent;
      index = node->blocks.size();
    }
  }
  return usable;
}

// Whether the prefix that ends before block `index` of the node's edge has the window pages of its
// last `blocks` blocks, or of all if it is shorter.
bool RadixCache::HasWindows(const Node* node, int index, int blocks) const {
  if (!pool_.shape().windowed()) return true;
  while (node->parent != nullptr && blocks > 0) {
    if (index == 0) {
      node = node->parent;
      index = node->blocks.size();
    } else if (node->blocks.has_window(index - 1)) {
      --blocks;
      --index;
    } else {
      return false;
    }
  }
  return true;
}

bool RadixCache::IsUsable(const Node* node, int index) const {
  return HasWindows(node, index, pool_.shape().window_blocks);
}

bool RadixCache::HasWindows(PrefixKey root, absl::Span<const int32_t> tokens, int blocks) const {
  const Reach reach = Walk(root, tokens);
  return size_t{1} * reach.blocks * block_tokens_ == tokens.size() &&
         (reach.blocks == 0 || HasWindows(reach.node, reach.edge_blocks, blocks));
}

std::vector<int> RadixCache::Snapshots(PrefixKey root, absl::Span<const int32_t> tokens) const {
  BATON_CHECK(pool_.shape().recurrent);
  const Reach reach = Walk(root, tokens);
  std::vector<int> lengths;
  int length = reach.blocks, index = reach.edge_blocks;
  for (const Node* node = reach.node; node != nullptr && node->parent != nullptr;) {
    for (; index > 0; --index, --length) {
      if (node->blocks.has_window(index - 1)) lengths.push_back(length);
    }
    node = node->parent;
    index = node->blocks.size();
  }
  return lengths;
}

// Along the reached path, a block of the caller's takes the place of the tree's where only the
// caller's has window pages.
void RadixCache::TakeWindows(const Reach& reach, const BlockLease& blocks) {
  if (!pool_.shape().windowed()) return;
  int end = reach.blocks;
  for (Node* node = reach.node; node->parent != nullptr; node = node->parent) {
    const int begin = end - node->blocks.size();
    bool changed = false;
    for (int i = begin; i < end; ++i) {
      if (!blocks.has_window(i) || node->blocks.has_window(i - begin)) continue;
      const BlockId old = node->blocks.ids()[i - begin], next = blocks.ids()[i];
      if (old != next) {
        BATON_CHECK(positions_[next].node == nullptr) << "block " << next << " is cached already";
        positions_[old] = Position{};
        positions_[next] = Position{node, i - begin};
      }
      node->blocks.Replace(i - begin, blocks, i);
      Tell(/*added=*/true, *node, i - begin);
      changed = true;
    }
    if (changed) {
      node->locked_end = LockedEnd(*node, node->blocks.size());
      CountWindows(node);
      Settle(node);
    }
    end = begin;
  }
}

// Window pages from this block of the edge on are needed at its end; of snapshots, the last one is.
int RadixCache::TailBegin(const Node& node) const {
  if (pool_.shape().recurrent) return node.windows > 0 ? node.last_window : node.blocks.size();
  return std::max(0, node.blocks.size() - pool_.shape().window_blocks);
}

bool RadixCache::HasFreeWindow(const Node& node, int index) const {
  return node.blocks.has_window(index) && pool_.WindowRefCount(node.blocks.ids()[index]) == 1;
}

// Frees window pages that only the tree refers to, until so many pages are free, the first of the
// edge first. Returns how many pages.
int RadixCache::DropFreeWindows(Node* node, bool tail, int pages) {
  const int begin = tail ? TailBegin(*node) : 0;
  const int end = tail ? node->blocks.size() : TailBegin(*node);
  int freed = 0;
  for (int i = begin; i < end && freed < pages; ++i) {
    if (!HasFreeWindow(*node, i)) continue;
    Tell(/*added=*/false, *node, i);
    node->blocks.DropWindow(i);
    freed += pool_.shape().window_pages;
  }
  CountWindows(node);
  SettleWindows(node);
  return freed;
}

// Called by the pool: a reference to a block's window pages other than the tree's was taken or
// given back.
void RadixCache::OnWindowShared(BlockId block, bool shared) {
  const Position position = positions_[block];
  if (position.node == nullptr) return;
  Node& node = *position.node;
  // While the tree itself takes or gives pages, it counts the node anew afterwards.
  if (!node.blocks.has_window(position.index)) return;
  (position.index < TailBegin(node) ? node.free_insides : node.free_tails) += shared ? -1 : 1;
  evictable_window_count_ += shared ? -1 : 1;
  SettleWindows(&node);
}

// Counts the edge's window pages anew. SettleWindows or Settle must follow.
void RadixCache::CountWindows(Node* node) {
  if (!pool_.shape().windowed()) return;
  evictable_window_count_ -= node->free_insides + node->free_tails;
  window_count_ -= node->windows;
  node->windows = node->free_insides = node->free_tails = 0;
  node->last_window = node->blocks.LastWindow();
  for (int i = 0; i < node->blocks.size(); ++i) {
    node->windows += node->blocks.has_window(i) ? 1 : 0;
  }
  for (int i = 0; i < node->blocks.size(); ++i) {
    if (!HasFreeWindow(*node, i)) continue;
    ++(i < TailBegin(*node) ? node->free_insides : node->free_tails);
  }
  evictable_window_count_ += node->free_insides + node->free_tails;
  window_count_ += node->windows;
}

// Whether the last snapshot of the node's edge is superseded. Those before it are. One that is
// retained less supersedes none.
bool RadixCache::IsSuperseded(const Node& node) const {
  const Node* next = &node;
  while (next->children.size() == 1 && !next->parted) {
    next = next->children.begin()->second.get();
    if (next->windows > 0) return next->priority >= node.priority;
  }
  return false;
}

// How many snapshots of the node's edge are.
int RadixCache::SupersededOf(const Node& node) const {
  if (!pool_.shape().recurrent || !superseded_first_ || node.windows == 0) return 0;
  return node.windows - (IsSuperseded(node) ? 0 : 1);
}

std::pair<RadixCache::WindowOrder, RadixCache::WindowOrder> RadixCache::WindowOrdersOf(
    const Node& node) const {
  static constexpr int kSuperseded = -1;
  const bool first = pool_.shape().recurrent && superseded_first_;
  const auto order = [&node](bool superseded) {
    return WindowOrder{{superseded ? kSuperseded : node.priority, node.last_use}, node.number};
  };
  return {order(first), order(first && IsSuperseded(node))};
}

// Brings the node's places in free_insides_ and free_tails_ in line with its counts, and those of
// the nodes before it whose last snapshots its own may supersede.
void RadixCache::SettleWindows(Node* node) {
  SettleWindowOrder(node);
  if (!pool_.shape().recurrent || !superseded_first_) return;
  for (Node* before = node->parent; before != nullptr && before->parent != nullptr;
       before = before->parent) {
    SettleWindowOrder(before);
    if (before->windows > 0 || before->parted) return;
  }
}

void RadixCache::SettleWindowOrder(Node* node) {
  const auto settle = [node](int count, const WindowOrder& wanted,
                             std::optional<WindowOrder>& reported,
                             std::map<WindowOrder, Node*>& all) {
    std::optional<WindowOrder> order;
    if (count > 0) order = wanted;
    if (order == reported) return;
    if (reported) all.erase(*reported);
    if (order) all.emplace(*order, node);
    reported = order;
  };
  const int superseded = SupersededOf(*node);
  superseded_count_ += superseded - node->reported_superseded;
  node->reported_superseded = superseded;
  const auto [inside, tail] = WindowOrdersOf(*node);
  settle(node->free_insides, inside, node->reported_inside, free_insides_);
  settle(node->free_tails, tail, node->reported_tail, free_tails_);
}

int RadixCache::EvictSnapshots(int page_count, int most_priority) {
  BATON_CHECK(pool_.shape().recurrent);
  ExpireRetention();
  int evicted = 0;
  while (evicted < page_count && !(free_insides_.empty() && free_tails_.empty())) {
    const bool tail = free_insides_.empty() ||
                      (!free_tails_.empty() &&
                       free_tails_.begin()->first.first < free_insides_.begin()->first.first);
    const auto& [order, node] = *(tail ? free_tails_ : free_insides_).begin();
    if (order.first.first > most_priority) break;
    evicted += DropFreeWindows(node, tail, page_count - evicted);
  }
  return evicted;
}

bool RadixCache::EndsInSnapshot(const Node& node) const {
  return node.blocks.has_window(node.blocks.size() - 1);
}

void RadixCache::BoundSnapshots() {
  if (!pool_.shape().recurrent || window_count_ <= snapshot_limit_) return;
  const int pages = pool_.shape().window_pages;
  // Superseded ones that are in use will go when they are not: others must not go for them.
  EvictSnapshots((window_count_ - snapshot_limit_) * pages, /*most_priority=*/-1);
  const int excess = window_count_ - superseded_count_ - snapshot_limit_;
  if (excess <= 0) return;
  EvictSnapshots(excess * pages, /*most_priority=*/0);
  int retained = 0;
  for (const auto& [expiry, node] : expiries_) retained += node->windows;
  if (retained > snapshot_limit_) EvictSnapshots((retained - snapshot_limit_) * pages);
}

// Tells the listener of a snapshot, if the block has one.
void RadixCache::Tell(bool added, const Node& node, int index) {
  if (!listener_ || !pool_.shape().recurrent || !node.blocks.has_window(index)) return;
  listener_(CacheChange{added, SnapshotKey(node.keys[index])});
}

void RadixCache::CheckWindows(const Node& node) const {
  int insides = 0, tails = 0, windows = 0;
  for (int i = 0; i < node.blocks.size(); ++i) {
    windows += node.blocks.has_window(i) ? 1 : 0;
    if (!HasFreeWindow(node, i)) continue;
    ++(i < TailBegin(node) ? insides : tails);
  }
  BATON_CHECK_EQ(windows, node.windows);
  BATON_CHECK_EQ(insides, node.free_insides);
  BATON_CHECK_EQ(tails, node.free_tails);
  BATON_CHECK_EQ(node.last_window, node.blocks.LastWindow());
  BATON_CHECK(node.parted || node.children.size() < 2);
  BATON_CHECK_EQ(node.reported_superseded, SupersededOf(node));
  const auto check = [&node](int count, const WindowOrder& expected,
                             const std::optional<WindowOrder>& reported,
                             const std::map<WindowOrder, Node*>& all) {
    BATON_CHECK_EQ(reported.has_value(), count > 0);
    if (count == 0) return;
    BATON_CHECK(*reported == expected);
    const auto found = all.find(*reported);
    BATON_CHECK(found != all.end() && found->second == &node);
  };
  const auto [inside, tail] = WindowOrdersOf(node);
  check(insides, inside, node.reported_inside, free_insides_);
  check(tails, tail, node.reported_tail, free_tails_);
}

}  // namespace baton::kv
