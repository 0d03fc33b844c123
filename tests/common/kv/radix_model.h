// The simplest thing that does what RadixCache does: a map from whole prefixes to blocks.
#ifndef BATON_TESTS_COMMON_KV_RADIX_MODEL_H_
#define BATON_TESTS_COMMON_KV_RADIX_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/kv/radix_cache.h"

namespace baton::kv {

class RadixModel {
 public:
  using Tokens = std::vector<int32_t>;
  using Prefix = std::pair<PrefixKey, Tokens>;  // the root, and whole blocks of tokens
  struct Entry {
    BlockId block = 0;
    uint64_t last_use = 0;
    int priority = 0;
    absl::Duration ttl = {};
    absl::Duration expires_at = {};

    std::pair<int, uint64_t> order() const { return {priority, last_use}; }
  };

  RadixModel(const BlockPool& pool, int block_tokens, const RetentionLimits& limits)
      : pool_(pool), block_tokens_(block_tokens), limits_(limits) {}

  std::vector<BlockId> Peek(PrefixKey root, const Tokens& tokens, int max_tokens) const {
    std::vector<BlockId> blocks;
    for (const Prefix& prefix : PrefixesOf(root, tokens)) {
      auto found = entries_.find(prefix);
      if (found == entries_.end() || static_cast<int>(prefix.second.size()) > max_tokens) break;
      blocks.push_back(found->second.block);
    }
    return blocks;
  }

  std::vector<BlockId> Match(PrefixKey root, const Tokens& tokens, int max_tokens) {
    std::vector<BlockId> blocks = Peek(root, tokens, max_tokens);
    ++clock_;
    const std::vector<Prefix> prefixes = PrefixesOf(root, tokens);
    for (size_t i = 0; i < blocks.size(); ++i) Use(entries_.at(prefixes[i]));
    return blocks;
  }

  // Block by block: what is retained already is raised, the rest gets the room that less retained
  // blocks, last ones first, leave.
  void Retain(PrefixKey root, const Tokens& tokens, const Retention& retention) {
    if (retention.priority == 0) return;
    const size_t limit = size_t{1} * retained_limit() * block_tokens_;
    const Tokens front(tokens.begin(), tokens.begin() + std::min(tokens.size(), limit));
    const size_t blocks = Match(root, front, RadixCache::kNoLimit).size();
    std::vector<Entry*> path;
    for (const Prefix& prefix : PrefixesOf(root, front)) {
      if (path.size() < blocks) path.push_back(&entries_.at(prefix));
    }
    for (Entry* entry : path) {
      if (entry->priority == 0) continue;
      entry->priority = std::max(entry->priority, retention.priority);
      entry->ttl = std::max(entry->ttl, retention.ttl);
      entry->expires_at = Now() + entry->ttl;
    }
    const int missing = static_cast<int>(path.size()) - RetainedOf(path);
    while (retained_limit() - retained_block_count() < missing) {
      Entry* least = LeastRetainedEnd();
      if (least == nullptr || least->priority > retention.priority || least->last_use == clock_) {
        break;
      }
      least->priority = 0;
    }
    int room = retained_limit() - retained_block_count();
    for (Entry* entry : path) {
      if (entry->priority > 0 || room-- <= 0) continue;
      entry->priority = retention.priority;
      entry->ttl = retention.ttl;
      entry->expires_at = Now() + retention.ttl;
    }
  }

  int retained_limit() const { return static_cast<int>(pool_.counts().total * limits_.max_share); }
  int retained_block_count() {
    Expire();
    int count = 0;
    for (const auto& [prefix, entry] : entries_) count += entry.priority > 0 ? 1 : 0;
    return count;
  }

  void Insert(PrefixKey root, const Tokens& tokens, const std::vector<BlockId>& blocks) {
    ++clock_;
    const std::vector<Prefix> prefixes = PrefixesOf(root, tokens);
    for (size_t i = 0; i < prefixes.size(); ++i) {
      Use(entries_.try_emplace(prefixes[i], Entry{blocks[i]}).first->second);
    }
  }

  // Returns the keys in the order of their eviction. Call before the real eviction: what is locked
  // is read from the pool.
  std::vector<PrefixKey> Evict(int block_count) {
    Expire();
    std::vector<PrefixKey> evicted;
    while (static_cast<int>(evicted.size()) < block_count) {
      auto oldest = entries_.end();
      for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        if (IsLocked(entry->second.block) || IsExtended(entry->first)) continue;
        if (oldest == entries_.end() || entry->second.order() < oldest->second.order()) {
          oldest = entry;
        }
      }
      if (oldest == entries_.end()) break;
      evicted.push_back(KeyOf(oldest->first));
      entries_.erase(oldest);
    }
    return evicted;
  }

  int EvictableBlockCount() const {
    int count = 0;
    for (const auto& [prefix, entry] : entries_) {
      bool covered = false;
      for (const auto& [other, other_entry] : entries_) {
        covered |= IsLocked(other_entry.block) && IsPrefix(prefix, other);
      }
      count += covered ? 0 : 1;
    }
    return count;
  }

  std::multiset<PrefixKey> Keys() const {
    std::multiset<PrefixKey> keys;
    for (const auto& [prefix, entry] : entries_) keys.insert(KeyOf(prefix));
    return keys;
  }
  int block_count() const { return static_cast<int>(entries_.size()); }

 private:
  absl::Duration Now() const { return limits_.clock.SinceStart(); }
  void Use(Entry& entry) {
    Expire();
    entry.last_use = clock_;
    if (entry.priority > 0) entry.expires_at = Now() + entry.ttl;
  }
  void Expire() {
    for (auto& [prefix, entry] : entries_) {
      if (entry.expires_at <= Now()) entry.priority = 0;
    }
  }
  static int RetainedOf(const std::vector<Entry*>& path) {
    return static_cast<int>(
        std::count_if(path.begin(), path.end(), [](Entry* entry) { return entry->priority > 0; }));
  }
  // Among the retained blocks that no retained one follows.
  Entry* LeastRetainedEnd() {
    Entry* least = nullptr;
    for (auto& [prefix, entry] : entries_) {
      if (entry.priority == 0) continue;
      bool followed = false;
      for (const auto& [other, other_entry] : entries_) {
        followed |= other != prefix && IsPrefix(prefix, other) && other_entry.priority > 0;
      }
      if (!followed && (least == nullptr || entry.order() < least->order())) least = &entry;
    }
    return least;
  }

  std::vector<Prefix> PrefixesOf(PrefixKey root, const Tokens& tokens) const {
    std::vector<Prefix> prefixes;
    for (size_t end = block_tokens_; end <= tokens.size(); end += block_tokens_) {
      prefixes.emplace_back(root, Tokens(tokens.begin(), tokens.begin() + end));
    }
    return prefixes;
  }
  PrefixKey KeyOf(const Prefix& prefix) const {
    return PrefixKeys(prefix.first, prefix.second, block_tokens_).back();
  }
  static bool IsPrefix(const Prefix& a, const Prefix& b) {
    return a.first == b.first && a.second.size() <= b.second.size() &&
           std::equal(a.second.begin(), a.second.end(), b.second.begin());
  }
  bool IsExtended(const Prefix& prefix) const {
    for (const auto& [other, entry] : entries_) {
      if (other != prefix && IsPrefix(prefix, other)) return true;
    }
    return false;
  }
  // A model must not look at what it models, but references are the pool's, tested on its own.
  bool IsLocked(BlockId block) const { return pool_.RefCount(block) > 1; }

  const BlockPool& pool_;
  const int block_tokens_;
  const RetentionLimits limits_;
  std::map<Prefix, Entry> entries_;
  uint64_t clock_ = 0;
};

}  // namespace baton::kv

#endif  // BATON_TESTS_COMMON_KV_RADIX_MODEL_H_
