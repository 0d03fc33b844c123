#include "simulator/block_cache.h"

#include <algorithm>

namespace baton::simulator {

BlockCache::BlockCache(int block_count, int capacity)
    : sentinel_(block_count),
      capacity_(capacity),
      next_(block_count + 1, kAbsent),
      previous_(block_count + 1, kAbsent) {
  next_[sentinel_] = previous_[sentinel_] = sentinel_;
}

int BlockCache::Match(absl::Span<const int32_t> path) const {
  // What holds a block holds all before it.
  return static_cast<int>(std::partition_point(path.begin(), path.end(),
                                               [this](int32_t block) { return Contains(block); }) -
                          path.begin());
}

void BlockCache::Insert(absl::Span<const int32_t> path, std::vector<int32_t>* added,
                        std::vector<int32_t>* removed) {
  path = path.subspan(0, capacity_);
  const int have = Match(path);
  // Out of the list while others are evicted: this path stays.
  for (int i = 0; i < have; ++i) Unlink(path[i]);
  const int missing = static_cast<int>(path.size()) - have;
  while (size_ + missing > capacity_) {
    const int32_t last = EvictLast();
    if (removed != nullptr) removed->push_back(last);
  }
  size_ += missing;
  for (int i = static_cast<int>(path.size()) - 1; i >= 0; --i) Link(path[i]);
  if (added != nullptr) added->insert(added->end(), path.begin() + have, path.end());
}

int32_t BlockCache::EvictLast() {
  const int32_t last = previous_[sentinel_];
  Unlink(last);
  next_[last] = kAbsent;
  --size_;
  return last;
}

void BlockCache::Clear() {
  std::fill(next_.begin(), next_.end(), kAbsent);
  next_[sentinel_] = previous_[sentinel_] = sentinel_;
  size_ = 0;
}

std::vector<int32_t> BlockCache::Contents() const {
  std::vector<int32_t> contents;
  for (int32_t b = next_[sentinel_]; b != sentinel_; b = next_[b]) contents.push_back(b);
  return contents;
}

void BlockCache::Link(int32_t block) {
  const int32_t first = next_[sentinel_];
  next_[block] = first;
  previous_[block] = sentinel_;
  previous_[first] = block;
  next_[sentinel_] = block;
}

void BlockCache::Unlink(int32_t block) {
  next_[previous_[block]] = next_[block];
  previous_[next_[block]] = previous_[block];
}

}  // namespace baton::simulator
