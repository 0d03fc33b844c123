// The part of RadixCache that retains prefixes; see radix_cache.h for the rule.
//
// What a tree retains is closed towards its roots: a retained block's predecessors are retained at
// least as highly and as long. Uses, new retentions, demotions and evictions all keep it so.
#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/kv/radix_cache.h"
#include "common/kv/radix_node.h"

namespace baton::kv {

void RadixCache::Retain(PrefixKey root, absl::Span<const int32_t> tokens,
                        const Retention& retention) {
  BATON_CHECK_GE(retention.priority, 0);
  BATON_CHECK_GT(retention.ttl, absl::ZeroDuration());
  tokens = tokens.subspan(0, size_t{1} * retained_limit_ * block_tokens_);
  if (retention.priority == 0) return;
  ExpireRetention();
  std::vector<int> snapshots;
  if (pool_.shape().recurrent) {
    // What follows the last one is of no use to a prompt.
    snapshots = Snapshots(root, tokens);
    if (snapshots.empty()) return;
    tokens = tokens.subspan(0, size_t{1} * snapshots.front() * block_tokens_);
  }
  if (Walk(root, tokens).blocks == 0) return;
  Node* end = ReachedNode(Walk(root, tokens));
  Touch(end);
  std::vector<Node*> path;
  for (Node* node = end; node->parent != nullptr; node = node->parent) path.push_back(node);
  std::reverse(path.begin(), path.end());

  int missing = 0, retained = 0;
  for (Node* node : path) {
    if (node->priority == 0) {
      missing += node->blocks.size();
    } else {
      retained += node->blocks.size();
      SetRetention(node, std::max(node->priority, retention.priority),
                   std::max(node->ttl, retention.ttl));
    }
  }
  int room =
      std::min(missing, MakeRetainedRoom(missing, retention.priority, path.back()->last_use));
  if (pool_.shape().recurrent) {
    const auto last = std::find_if(snapshots.begin(), snapshots.end(),
                                   [&](int length) { return length <= retained + room; });
    room = last == snapshots.end() ? 0 : std::max(0, *last - retained);
  }
  for (Node* node : path) {
    if (node->priority > 0) continue;
    if (room == 0) break;
    if (room < node->blocks.size()) node = SplitEdge(node, room);
    room -= node->blocks.size();
    SetRetention(node, retention.priority, retention.ttl);
  }
  BoundSnapshots();
}

int RadixCache::retained_block_count() {
  ExpireRetention();
  return retained_block_count_;
}

// Demotes prefixes of at most that priority, the least first, until `wanted` more blocks may be
// retained; returns how many may be. Those with the last use `own_use` are the caller's.
int RadixCache::MakeRetainedRoom(int wanted, int priority, uint64_t own_use) {
  while (retained_limit_ - retained_block_count_ < wanted && !retained_ends_.empty()) {
    const auto [least_priority, last_use, least] = *retained_ends_.begin();
    if (least_priority > priority || last_use == own_use) break;
    const int excess = wanted - (retained_limit_ - retained_block_count_);
    int kept = std::max(0, least->blocks.size() - excess);
    while (pool_.shape().recurrent && kept > 0 && !least->blocks.has_window(kept - 1)) --kept;
    if (kept > 0) SplitEdge(least, kept);  // `least` is then the part behind
    ClearRetention(least);
  }
  return retained_limit_ - retained_block_count_;
}

void RadixCache::ExpireRetention() {
  if (expiries_.empty()) return;
  const absl::Duration now = clock_.SinceStart();
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    ClearRetention(expiries_.begin()->second);
  }
}

// From now on.
void RadixCache::SetRetention(Node* node, int priority, absl::Duration ttl) {
  if (node->priority == 0) {
    retained_block_count_ += node->blocks.size();
    ++node->parent->retained_children;
    SettleRetention(node->parent);
  }
  node->priority = priority;
  node->ttl = ttl;
  node->expires_at = clock_.SinceStart() + ttl;
  SettleRetention(node);
  SettleOrder(node);
}

void RadixCache::ClearRetention(Node* node) {
  if (node->priority == 0) return;
  retained_block_count_ -= node->blocks.size();
  node->priority = 0;
  SettleRetention(node);
  SettleOrder(node);
  --node->parent->retained_children;
  SettleRetention(node->parent);
}

// Brings the node's places in expiries_ and retained_ends_ in line with its fields.
void RadixCache::SettleRetention(Node* node) {
  std::optional<absl::Duration> expiry;
  std::optional<std::pair<int, uint64_t>> end;
  if (node->priority > 0) {
    expiry = node->expires_at;
    if (node->retained_children == 0) end = {node->priority, node->last_use};
  }
  if (expiry != node->reported_expiry) {
    if (node->reported_expiry) expiries_.erase({*node->reported_expiry, node});
    if (expiry) expiries_.emplace(*expiry, node);
    node->reported_expiry = expiry;
  }
  if (end != node->reported_end) {
    if (node->reported_end) {
      retained_ends_.erase({node->reported_end->first, node->reported_end->second, node});
    }
    if (end) retained_ends_.emplace(end->first, end->second, node);
    node->reported_end = end;
  }
}

void RadixCache::CheckRetention(const Node& node) const {
  int retained_children = 0;
  for (const auto& [tokens, child] : node.children) {
    retained_children += child->priority > 0 ? 1 : 0;
    if (child->priority == 0 || node.parent == nullptr) continue;
    BATON_CHECK_GE(node.priority, child->priority) << "retained without its prefix";
    BATON_CHECK(node.expires_at >= child->expires_at) << "expires before what follows it";
  }
  BATON_CHECK_EQ(retained_children, node.retained_children);
  BATON_CHECK_EQ(node.reported_expiry.has_value(), node.priority > 0);
  BATON_CHECK_EQ(node.reported_end.has_value(), node.priority > 0 && retained_children == 0);
  if (node.reported_expiry) {
    BATON_CHECK(*node.reported_expiry == node.expires_at);
    BATON_CHECK(expiries_.contains({node.expires_at, const_cast<Node*>(&node)}));
  }
  if (node.reported_end) {
    BATON_CHECK(*node.reported_end == std::pair(node.priority, node.last_use));
    BATON_CHECK(retained_ends_.contains({node.priority, node.last_use, const_cast<Node*>(&node)}));
  }
}

}  // namespace baton::kv
