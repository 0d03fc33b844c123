#include "common/kv/radix_cache.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/kv/radix_node.h"

namespace baton::kv {
namespace {

// How many whole blocks at the beginning of the two are equal.
int EqualBlocks(absl::Span<const int32_t> a, absl::Span<const int32_t> b, int block_tokens) {
  const int comparable = static_cast<int>(std::min(a.size(), b.size()) / block_tokens);
  const auto equal = [&](int begin, int count) {
    const size_t offset = size_t{1} * begin * block_tokens;
    return std::memcmp(a.data() + offset, b.data() + offset,
                       sizeof(int32_t) * count * block_tokens) == 0;
  };
  // Long prompts are equal for long: many blocks at a time cost one call.
  constexpr int kAtOnce = 64;
  int blocks = 0;
  while (blocks + kAtOnce <= comparable && equal(blocks, kAtOnce)) blocks += kAtOnce;
  while (blocks < comparable && equal(blocks, 1)) ++blocks;
  return blocks;
}

}  // namespace

RadixCache::RadixCache(BlockPool& pool, int block_tokens, const RetentionLimits& limits)
    : pool_(pool),
      block_tokens_(block_tokens),
      clock_(limits.clock),
      // Where there are states, most blocks have none.
      retained_limit_(static_cast<int>(
          pool.counts().total /
          (pool.shape().recurrent ? pool.shape().full_pages : pool.shape().pages()) *
          limits.max_share)),
      snapshot_limit_(
          pool.shape().recurrent
              ? std::max(2, static_cast<int>(limits.max_snapshot_share * pool.counts().total /
                                             pool.shape().window_pages))
              : 0),
      superseded_first_(limits.superseded_first) {
  BATON_CHECK_GT(block_tokens, 0);
  BATON_CHECK(limits.max_share >= 0 && limits.max_share <= 1);
  positions_.resize(pool.block_count());
  pool_.SetShareListener([this](BlockId block, bool shared) { OnShared(block, shared); },
                         [this](BlockId block, bool shared) { OnWindowShared(block, shared); });
}

RadixCache::~RadixCache() {
  pool_.SetShareListener(nullptr);
  // Not by recursion: a path may have as many nodes as the pool has blocks.
  std::vector<std::unique_ptr<Node>> doomed;
  for (auto& [key, root] : roots_) doomed.push_back(std::move(root));
  while (!doomed.empty()) {
    std::unique_ptr<Node> node = std::move(doomed.back());
    doomed.pop_back();
    for (auto& [tokens, child] : node->children) doomed.push_back(std::move(child));
  }
}

Match RadixCache::MatchPrefix(PrefixKey root, absl::Span<const int32_t> tokens, int max_tokens) {
  BATON_CHECK_GE(max_tokens, 0);
  const Reach all = Walk(root, tokens.subspan(0, max_tokens));
  const Reach reach = Usable(all, root, tokens);
  Match match;
  if (reach.blocks == 0) return match;

  Node* end = ReachedNode(reach);
  if (all.blocks == reach.blocks && !end->children.empty()) end->parted = true;
  Touch(end);
  match.blocks = SharePath(end, pool_.shape().FirstWindowBlock(reach.blocks));
  match.tokens = match.blocks.size() * block_tokens_;
  return match;
}

BlockLease RadixCache::Lock(PrefixKey root, absl::Span<const int32_t> tokens, int window_begin) {
  const Reach reach = Walk(root, tokens);
  BATON_CHECK_EQ(static_cast<size_t>(reach.blocks) * block_tokens_, tokens.size());
  if (reach.blocks == 0) return {};
  Node* end = ReachedNode(reach);
  Touch(end);
  return SharePath(end, window_begin);
}

BlockLease RadixCache::SharePath(Node* end, int window_begin) {
  std::vector<Node*> path;
  for (Node* node = end; node->parent != nullptr; node = node->parent) path.push_back(node);
  BlockLease shared;
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    const BlockLease& blocks = (*node)->blocks;
    shared.Append(blocks.Share(0, blocks.size(), BlockUse::kActive, window_begin - shared.size()));
  }
  return shared;
}

int RadixCache::Peek(PrefixKey root, absl::Span<const int32_t> tokens, int max_tokens) const {
  BATON_CHECK_GE(max_tokens, 0);
  return UsableBlocks(Walk(root, tokens.subspan(0, max_tokens))) * block_tokens_;
}

void RadixCache::Insert(PrefixKey root, absl::Span<const int32_t> tokens,
                        const BlockLease& blocks) {
  const int full_blocks = static_cast<int>(tokens.size() / block_tokens_);
  BATON_CHECK_GE(blocks.size(), full_blocks);
  if (full_blocks == 0) return;
  tokens = tokens.subspan(0, size_t{1} * full_blocks * block_tokens_);

  std::unique_ptr<Node>& root_node = roots_[root];
  if (root_node == nullptr) {
    root_node = NewNode(nullptr);
    root_node->root_key = root;
  }
  const Reach reach = Walk(root, tokens);
  Node* node = ReachedNode(reach);
  Touch(node);
  TakeWindows({node, node->blocks.size(), reach.blocks}, blocks);
  if (reach.blocks == full_blocks) return BoundSnapshots();

  // A leaf just touched in full may grow in place: all blocks of its edge keep one last use.
  const absl::Span<const int32_t> rest = tokens.subspan(size_t{1} * reach.blocks * block_tokens_);
  // A retained one may not: what follows it is not retained. Nor where paths parted.
  const bool grows = node->parent != nullptr && node->children.empty() && node->priority == 0 &&
                     !(node->parted && pool_.shape().recurrent);
  if (!grows) node = AddChild(node, rest.subspan(0, block_tokens_));
  Extend(node, rest, blocks.Share(reach.blocks, full_blocks, BlockUse::kCached));
  BoundSnapshots();
}

int RadixCache::Evict(int page_count) {
  BATON_CHECK_GE(page_count, 0);
  ExpireRetention();
  int evicted = 0;
  while (evicted < page_count && evictable_page_count() > 0) {
    const int wanted = page_count - evicted;
    // Where all three have one last use, they go in this order.
    constexpr Order kNone = {std::numeric_limits<int>::max(), 0};
    const Order inside = free_insides_.empty() ? kNone : free_insides_.begin()->first.first;
    const Order leaf = evictable_leaves_.empty() ? kNone : evictable_leaves_.begin()->first;
    const Order tail = free_tails_.empty() ? kNone : free_tails_.begin()->first.first;
    // Blocks behind the last snapshot of a path serve no prompt.
    const bool serves_none = pool_.shape().recurrent && leaf != kNone &&
                             (leaf <= tail || tail.first < 0) &&
                             !EndsInSnapshot(*evictable_leaves_.begin()->second);
    if (serves_none) {
      evicted += TrimLeaf(evictable_leaves_.begin()->second, wanted);
    } else if (inside <= std::min(leaf, tail) && inside != kNone) {
      evicted += DropFreeWindows(free_insides_.begin()->second, /*tail=*/false, wanted);
    } else if (leaf <= tail && leaf != kNone) {
      evicted += TrimLeaf(evictable_leaves_.begin()->second, wanted);
    } else {
      evicted += DropFreeWindows(free_tails_.begin()->second, /*tail=*/true, wanted);
    }
  }
  return evicted;
}

int RadixCache::Clear() {
  const int before = block_count_;
  Evict(evictable_page_count());
  return before - block_count_;
}

void RadixCache::SetListener(std::function<void(CacheChange)> listener) {
  listener_ = std::move(listener);
}

std::vector<PrefixKey> RadixCache::Keys() const {
  std::vector<PrefixKey> keys;
  keys.reserve(block_count_);
  std::vector<const Node*> pending;
  for (const auto& [key, root] : roots_) pending.push_back(root.get());
  while (!pending.empty()) {
    const Node* node = pending.back();
    pending.pop_back();
    keys.insert(keys.end(), node->keys.begin(), node->keys.end());
    if (pool_.shape().recurrent) {
      for (int i = 0; i < node->blocks.size(); ++i) {
        if (node->blocks.has_window(i)) keys.push_back(SnapshotKey(node->keys[i]));
      }
    }
    for (const auto& [tokens, child] : node->children) pending.push_back(child.get());
  }
  return keys;
}

int RadixCache::ReachedBlocks(PrefixKey root, absl::Span<const int32_t> tokens) const {
  return Walk(root, tokens).blocks;
}

RadixCache::Reach RadixCache::Walk(PrefixKey root, absl::Span<const int32_t> tokens) const {
  auto found = roots_.find(root);
  if (found == roots_.end()) return Reach{};
  Reach reach{found->second.get(), 0, 0};
  while (tokens.size() >= static_cast<size_t>(block_tokens_)) {
    auto child = reach.node->children.find(tokens.subspan(0, block_tokens_));
    if (child == reach.node->children.end()) break;
    reach.node = child->second.get();

    const std::vector<int32_t>& edge = reach.node->tokens;
    reach.edge_blocks = EqualBlocks(edge, tokens, block_tokens_);
    reach.blocks += reach.edge_blocks;
    if (reach.edge_blocks < reach.node->blocks.size()) break;
    tokens.remove_prefix(edge.size());
  }
  return reach;
}

RadixCache::Reach RadixCache::Usable(const Reach& reach, PrefixKey root,
                                     absl::Span<const int32_t> tokens) const {
  const int usable = UsableBlocks(reach);
  if (usable == reach.blocks) return reach;
  return Walk(root, tokens.subspan(0, size_t{1} * usable * block_tokens_));
}

std::unique_ptr<RadixCache::Node> RadixCache::NewNode(Node* parent) {
  auto node = std::make_unique<Node>();
  node->number = node_count_++;
  node->parent = parent;
  return node;
}

// The node that ends just where the agreement does.
RadixCache::Node* RadixCache::ReachedNode(const Reach& reach) {
  const bool inside_edge = reach.edge_blocks < reach.node->blocks.size();
  return inside_edge ? SplitEdge(reach.node, reach.edge_blocks) : reach.node;
}

// Puts a new node, which it returns, with the first `index` blocks above `node`, which keeps the
// rest and its children. REQUIRES: 0 < index < blocks in the edge.
RadixCache::Node* RadixCache::SplitEdge(Node* node, int index) {
  const int token_index = index * block_tokens_;
  Node* parent = node->parent;
  auto slot = parent->children.find(absl::MakeConstSpan(node->tokens).subspan(0, block_tokens_));
  BATON_CHECK(slot != parent->children.end());

  auto front = NewNode(parent);
  Node* result = front.get();
  front->last_use = node->last_use;
  front->priority = node->priority;
  front->ttl = node->ttl;
  front->expires_at = node->expires_at;
  front->retained_children = node->priority > 0 ? 1 : 0;
  front->tokens.assign(node->tokens.begin(), node->tokens.begin() + token_index);
  front->keys.assign(node->keys.begin(), node->keys.begin() + index);
  BlockLease back = node->blocks.SplitAt(index);
  front->blocks = std::move(node->blocks);
  // The front node now reports to the parent what the old one did; Settle() updates the rest.
  front->reported_covered = node->reported_covered;
  front->locked_end = LockedEnd(*front, std::min(node->locked_end, index));

  node->parent = result;
  node->tokens.erase(node->tokens.begin(), node->tokens.begin() + token_index);
  node->keys.erase(node->keys.begin(), node->keys.begin() + index);
  node->blocks = std::move(back);
  node->reported_covered = false;
  node->locked_end = std::max(node->locked_end - index, 0);

  std::vector<int32_t> first_block(node->tokens.begin(), node->tokens.begin() + block_tokens_);
  front->children.emplace(std::move(first_block), std::move(slot->second));
  slot->second = std::move(front);
  SetPositions(result, 0);
  SetPositions(node, 0);
  CountWindows(node);
  CountWindows(result);
  Settle(node);
  Settle(result);
  SettleRetention(result);
  return result;
}

// The path from the root to `node` becomes the most recently used.
void RadixCache::Touch(Node* node) {
  ExpireRetention();
  ++last_use_;
  for (; node != nullptr; node = node->parent) {
    node->last_use = last_use_;
    if (node->priority > 0) SetRetention(node, node->priority, node->ttl);
    SettleOrder(node);
  }
}

// A new child without blocks yet, which Extend() must give it.
RadixCache::Node* RadixCache::AddChild(Node* parent, absl::Span<const int32_t> first_block) {
  auto child = NewNode(parent);
  child->last_use = parent->last_use;
  Node* result = child.get();
  parent->children.emplace(std::vector<int32_t>(first_block.begin(), first_block.end()),
                           std::move(child));
  if (parent->children.size() > 1) parent->parted = true;
  SettleOrder(parent);  // a retained leaf is one no more
  return result;
}

// Adds blocks to the end of a leaf's edge. REQUIRES: they hold `tokens`, whole blocks.
void RadixCache::Extend(Node* node, absl::Span<const int32_t> tokens, BlockLease blocks) {
  const int begin = node->blocks.size();
  PrefixKey key = begin > 0 ? node->keys.back() : node->parent->EndKey();
  std::vector<PrefixKey> added = PrefixKeys(key, tokens, block_tokens_);
  for (BlockId block : blocks.ids()) {
    BATON_CHECK(positions_[block].node == nullptr) << "block " << block << " is cached already";
  }
  node->tokens.insert(node->tokens.end(), tokens.begin(), tokens.end());
  node->keys.insert(node->keys.end(), added.begin(), added.end());
  node->blocks.Append(std::move(blocks));
  SetPositions(node, begin);
  node->locked_end = LockedEnd(*node, node->blocks.size());
  block_count_ += static_cast<int>(added.size());
  CountWindows(node);
  Settle(node);

  if (!listener_) return;
  for (PrefixKey added_key : added) listener_(CacheChange{true, added_key});
  for (int i = begin; i < node->blocks.size(); ++i) Tell(/*added=*/true, *node, i);
}

// Evicts blocks with so many pages from the unlocked tail of the leaf's edge, as far as it has
// them, and what is not usable without them. Returns how many pages.
int RadixCache::TrimLeaf(Node* leaf, int pages) {
  const int free_before = pool_.counts().free;
  int left = leaf->blocks.size();
  for (int freed = 0; left > leaf->locked_end && freed < pages; --left) {
    freed += pool_.shape().full_pages;
    if (leaf->blocks.has_window(left - 1)) freed += pool_.shape().window_pages;
  }
  while (left > leaf->locked_end && !IsUsable(leaf, left)) --left;
  const int count = leaf->blocks.size() - left;
  for (int i = leaf->blocks.size() - 1; i >= left; --i) Tell(/*added=*/false, *leaf, i);
  const std::vector<PrefixKey> removed(leaf->keys.begin() + left, leaf->keys.end());
  BlockLease trimmed = leaf->blocks.SplitAt(left);
  for (BlockId block : trimmed.ids()) positions_[block] = Position{};
  trimmed.Release();
  CountWindows(leaf);
  leaf->keys.resize(left);
  if (leaf->priority > 0) retained_block_count_ -= count;
  block_count_ -= count;
  Settle(leaf);
  if (left == 0) {
    ClearRetention(leaf);
    RemoveLeaf(leaf);
  } else {
    leaf->tokens.resize(size_t{1} * left * block_tokens_);
    leaf->parted = false;  // which was where it ended
  }

  const int freed = pool_.counts().free - free_before;
  if (!listener_) return freed;
  for (auto key = removed.rbegin(); key != removed.rend(); ++key) {
    listener_(CacheChange{false, *key});
  }
  return freed;
}

// REQUIRES: the leaf has no blocks left, but still its tokens, by which its parent knows it.
void RadixCache::RemoveLeaf(Node* leaf) {
  Node* parent = leaf->parent;
  const std::vector<int32_t> first_block(leaf->tokens.begin(),
                                         leaf->tokens.begin() + block_tokens_);
  parent->children.erase(first_block);
  if (parent->parent == nullptr) {
    if (parent->children.empty()) roots_.erase(PrefixKey{parent->root_key});
    return;
  }
  SettleOrder(parent);  // it may be a leaf now
}

bool RadixCache::IsLocked(BlockId block) const { return pool_.RefCount(block) > 1; }

// Just after the last locked block of the edge before `end`; 0 if there is none.
int RadixCache::LockedEnd(const Node& node, int end) const {
  while (end > 0 && !IsLocked(node.blocks.ids()[end - 1])) --end;
  return end;
}

// Called by the pool: a reference other than the tree's was taken or given back.
void RadixCache::OnShared(BlockId block, bool shared) {
  const Position position = positions_[block];
  if (position.node == nullptr) return;
  Node& node = *position.node;
  if (shared && position.index >= node.locked_end) {
    node.locked_end = position.index + 1;
  } else if (!shared && position.index + 1 == node.locked_end) {
    node.locked_end = LockedEnd(node, position.index);
  } else {
    return;
  }
  Settle(&node);
}

void RadixCache::SetPositions(Node* node, int begin) {
  const std::vector<BlockId>& ids = node->blocks.ids();
  for (int i = begin; i < node->blocks.size(); ++i) positions_[ids[i]] = Position{node, i};
}

// Brings what others know of the node (the evictable count, its parents' covered children, the
// order of eviction) in line with its edge, locks and children.
void RadixCache::Settle(Node* node) {
  while (true) {
    const int evictable = node->blocks.size() - node->CoveredEnd();
    evictable_block_count_ += evictable - node->reported_evictable;
    node->reported_evictable = evictable;
    SettleOrder(node);

    const bool covered = node->CoveredEnd() > 0;
    if (covered == node->reported_covered || node->parent == nullptr) return;
    node->reported_covered = covered;
    node = node->parent;
    node->covered_children += covered ? 1 : -1;
  }
}

void RadixCache::SettleOrder(Node* node) {
  SettleWindows(node);
  std::optional<Order> order;
  if (node->children.empty() && node->reported_evictable > 0) {
    order = {node->priority, node->last_use};
  }
  if (order == node->reported_order) return;
  if (node->reported_order) evictable_leaves_.erase(*node->reported_order);
  if (order) {
    const bool is_new = evictable_leaves_.emplace(*order, node).second;
    BATON_CHECK(is_new) << "two leaves of last use " << order->second;
  }
  node->reported_order = order;
}

}  // namespace baton::kv
