#include "common/base/check.h"
#include "common/kv/radix_cache.h"
#include "common/kv/radix_node.h"

namespace baton::kv {

void RadixCache::CheckIntegrity() const {
  int blocks = 0;
  int evictable = 0;
  int retained = 0;
  size_t retained_nodes = 0;
  size_t ordered_leaves = 0;
  int windows = 0, all_windows = 0, superseded = 0;
  size_t insides = 0, tails = 0;
  std::vector<const Node*> pending;
  for (const auto& [key, root] : roots_) {
    BATON_CHECK(root->parent == nullptr && root->blocks.empty() && root->root_key == key);
    BATON_CHECK(!root->children.empty()) << "an empty namespace stays";
    pending.push_back(root.get());
  }
  while (!pending.empty()) {
    const Node& node = *pending.back();
    pending.pop_back();
    CheckEdge(node);
    CheckLocks(node);
    CheckRetention(node);
    CheckWindows(node);
    windows += node.free_insides + node.free_tails;
    all_windows += node.windows;
    superseded += node.reported_superseded;
    insides += node.free_insides > 0 ? 1 : 0;
    tails += node.free_tails > 0 ? 1 : 0;
    retained += node.priority > 0 ? node.blocks.size() : 0;
    retained_nodes += node.priority > 0 ? 1 : 0;
    blocks += node.blocks.size();
    evictable += node.reported_evictable;
    ordered_leaves += node.reported_order.has_value() ? 1 : 0;
    for (const auto& [tokens, child] : node.children) {
      BATON_CHECK(child->parent == &node);
      BATON_CHECK(!child->blocks.empty()) << "an edge without blocks";
      BATON_CHECK(
          TokensEqual()(tokens, absl::MakeConstSpan(child->tokens).subspan(0, block_tokens_)));
      BATON_CHECK_LE(child->last_use, node.last_use) << "used without its prefix";
      pending.push_back(child.get());
    }
  }
  BATON_CHECK_EQ(blocks, block_count_);
  BATON_CHECK_EQ(evictable, evictable_block_count_);
  BATON_CHECK_EQ(ordered_leaves, evictable_leaves_.size());
  BATON_CHECK_EQ(windows, evictable_window_count_);
  BATON_CHECK_EQ(all_windows, window_count_);
  BATON_CHECK_EQ(superseded, superseded_count_);
  BATON_CHECK_EQ(insides, free_insides_.size());
  BATON_CHECK_EQ(tails, free_tails_.size());
  BATON_CHECK_EQ(retained, retained_block_count_);
  BATON_CHECK_LE(retained, retained_limit_);
  BATON_CHECK_EQ(retained_nodes, expiries_.size());
  int positions = 0;
  for (const Position& position : positions_) positions += position.node != nullptr ? 1 : 0;
  BATON_CHECK_EQ(positions, block_count_);
}

// Tokens, keys and blocks of the edge belong together, and the way back from block to node is
// right.
void RadixCache::CheckEdge(const Node& node) const {
  BATON_CHECK_EQ(node.tokens.size(), node.keys.size() * block_tokens_);
  BATON_CHECK_EQ(node.keys.size(), node.blocks.ids().size());
  if (node.parent != nullptr) {
    BATON_CHECK(node.keys == PrefixKeys(node.parent->EndKey(), node.tokens, block_tokens_));
  }
  BATON_CHECK(node.blocks.empty() || node.blocks.use() == BlockUse::kCached);
  for (int i = 0; i < node.blocks.size(); ++i) {
    const BlockId block = node.blocks.ids()[i];
    BATON_CHECK(positions_[block].node == &node && positions_[block].index == i)
        << "block " << block;
    BATON_CHECK_GE(pool_.RefCount(block), 1);
  }
}

// Locks are what the pool says, and the counts made from them agree.
void RadixCache::CheckLocks(const Node& node) const {
  int locked_end = 0;
  for (int i = 0; i < node.blocks.size(); ++i) {
    if (IsLocked(node.blocks.ids()[i])) locked_end = i + 1;
  }
  BATON_CHECK_EQ(locked_end, node.locked_end);
  int covered_children = 0;
  for (const auto& [tokens, child] : node.children)
    covered_children += child->reported_covered ? 1 : 0;
  BATON_CHECK_EQ(covered_children, node.covered_children);
  BATON_CHECK_EQ(node.reported_evictable, node.blocks.size() - node.CoveredEnd());
  if (node.parent != nullptr) BATON_CHECK_EQ(node.reported_covered, node.CoveredEnd() > 0);

  const bool is_evictable_leaf = node.children.empty() && node.reported_evictable > 0;
  BATON_CHECK_EQ(node.reported_order.has_value(), is_evictable_leaf);
  if (!is_evictable_leaf) return;
  BATON_CHECK(*node.reported_order == std::pair(node.priority, node.last_use));
  auto found = evictable_leaves_.find(*node.reported_order);
  BATON_CHECK(found != evictable_leaves_.end() && found->second == &node);
}

}  // namespace baton::kv
