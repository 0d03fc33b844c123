// A prefix cache of bounded size: leaves go first, the least recently used of them before others.
// Stands for a worker's radix cache, and for the approximate trees of simulated peers.
#ifndef BATON_SIMULATOR_BLOCK_CACHE_H_
#define BATON_SIMULATOR_BLOCK_CACHE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace baton::simulator {

// A list by last use, in which every use of a path puts a block before those behind it: so the last
// of the list is a leaf always, and taking the last is leaf-first eviction.
class BlockCache {
 public:
  // Ids are below `block_count`.
  BlockCache(int block_count, int capacity);

  // Blocks of `path`, from its start, that are here. Not a use.
  int Match(absl::Span<const int32_t> path) const;
  bool Contains(int32_t block) const { return next_[block] != kAbsent; }

  // Uses the path, adding what is missing (which goes to *added) for the least recently used
  // (*removed). A path longer than the cache keeps its first blocks. Either may be null.
  void Insert(absl::Span<const int32_t> path, std::vector<int32_t>* added,
              std::vector<int32_t>* removed);
  // Takes out the leaf that was least recently used: which. REQUIRES: size() > 0.
  int32_t EvictLast();
  void Clear();

  int size() const { return size_; }
  std::vector<int32_t> Contents() const;

 private:
  static constexpr int32_t kAbsent = -1;

  void Link(int32_t block);  // as the most recent
  void Unlink(int32_t block);

  // Circular, with a sentinel behind the last id.
  const int32_t sentinel_;
  const int capacity_;
  std::vector<int32_t> next_, previous_;
  int size_ = 0;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_BLOCK_CACHE_H_
