// The keys of a store in the order of their last use, and their bytes.
#ifndef BATON_COMMON_KV_STORE_LRU_INDEX_H_
#define BATON_COMMON_KV_STORE_LRU_INDEX_H_

#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/kv_store/segment_store.h"

namespace baton::kv_store {

// Unsynchronized.
class LruIndex {
 public:
  // As the most recently used; replaces.
  void Put(const std::string& key, int64_t bytes);
  bool Contains(absl::string_view key) const { return places_.contains(key); }
  // As the most recently used. False: it is not there.
  bool Touch(absl::string_view key);
  void Remove(absl::string_view key);
  // The least recently used; nullopt if there is none.
  std::optional<std::string> Last() const;
  // Told of every key that comes or goes, and now of those that are there.
  void Listen(KeyListener listener);
  // How many of the keys, from the first on, are there. Touches them, the first one last.
  int CountLeading(absl::Span<const SegmentKey> keys);
  // How many of the keys there are up to the last one that is there, which it touches.
  int CountToLast(absl::Span<const SegmentKey> keys);

  int64_t bytes() const { return bytes_; }
  int64_t size() const { return static_cast<int64_t>(places_.size()); }

 private:
  struct Entry {
    std::string key;
    int64_t bytes;
  };
  std::list<Entry> entries_;  // the most recently used first
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> places_;
  int64_t bytes_ = 0;
  KeyListener listener_;
};

}  // namespace baton::kv_store

#endif  // BATON_COMMON_KV_STORE_LRU_INDEX_H_
