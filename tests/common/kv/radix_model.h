// The simplest thing that does what RadixCache does: a map from whole prefixes to blocks.
#ifndef BATON_TESTS_COMMON_KV_RADIX_MODEL_H_
#define BATON_TESTS_COMMON_KV_RADIX_MODEL_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "common/kv/radix_cache.h"

namespace baton::kv {

class RadixModel {
 public:
  using Tokens = std::vector<int32_t>;
  using Prefix = std::pair<PrefixKey, Tokens>;  // the root, and whole blocks of tokens
  struct Entry {
    BlockId block = 0;
    uint64_t last_use = 0;
  };

  RadixModel(const BlockPool& pool, int block_tokens) : pool_(pool), block_tokens_(block_tokens) {}

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
    for (size_t i = 0; i < blocks.size(); ++i) entries_.at(prefixes[i]).last_use = clock_;
    return blocks;
  }

  void Insert(PrefixKey root, const Tokens& tokens, const std::vector<BlockId>& blocks) {
    ++clock_;
    const std::vector<Prefix> prefixes = PrefixesOf(root, tokens);
    for (size_t i = 0; i < prefixes.size(); ++i) {
      entries_.try_emplace(prefixes[i], Entry{blocks[i], 0}).first->second.last_use = clock_;
    }
  }

  // Returns the keys in the order of their eviction. Call before the real eviction: what is locked
  // is read from the pool.
  std::vector<PrefixKey> Evict(int block_count) {
    std::vector<PrefixKey> evicted;
    while (static_cast<int>(evicted.size()) < block_count) {
      auto oldest = entries_.end();
      for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
        if (IsLocked(entry->second.block) || IsExtended(entry->first)) continue;
        if (oldest == entries_.end() || entry->second.last_use < oldest->second.last_use) {
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
  std::map<Prefix, Entry> entries_;
  uint64_t clock_ = 0;
};

}  // namespace baton::kv

#endif  // BATON_TESTS_COMMON_KV_RADIX_MODEL_H_
