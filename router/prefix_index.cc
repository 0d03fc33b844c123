#include "router/prefix_index.h"

#include <algorithm>

#include "common/base/check.h"

namespace baton::router {

PrefixIndex::PrefixIndex(int worker_count) { Grow(worker_count); }

void PrefixIndex::Grow(int worker_count) {
  BATON_CHECK_LE(worker_count, 1 << 16) << "workers are indexed by 16 bits";
  if (worker_count > static_cast<int>(workers_.size())) workers_.resize(worker_count);
}

void PrefixIndex::SetCapacity(int worker, int64_t key_count) {
  workers_[worker].capacity = key_count;
}

bool PrefixIndex::Add(int worker, absl::Span<const uint64_t> keys) {
  Worker& holder = workers_[worker];
  int64_t fresh = 0;
  for (uint64_t key : keys) fresh += holder.keys.contains(key) ? 0 : 1;
  if (static_cast<int64_t>(holder.keys.size()) + fresh > holder.capacity) return false;
  for (uint64_t key : keys) {
    if (holder.keys.insert(key).second) holders_[key].push_back(static_cast<uint16_t>(worker));
  }
  return true;
}

void PrefixIndex::Remove(int worker, absl::Span<const uint64_t> keys) {
  for (uint64_t key : keys) {
    if (workers_[worker].keys.erase(key) > 0) Erase(worker, key);
  }
}

void PrefixIndex::DropWorker(int worker) {
  for (uint64_t key : workers_[worker].keys) Erase(worker, key);
  absl::flat_hash_set<kv::PrefixKey>().swap(workers_[worker].keys);  // gives the memory back
}

int PrefixIndex::MatchDepth(int worker, absl::Span<const kv::PrefixKey> chain) const {
  const auto first_missing = std::partition_point(
      chain.begin(), chain.end(), [&](kv::PrefixKey key) { return Holds(worker, key); });
  return static_cast<int>(first_missing - chain.begin());
}

int64_t PrefixIndex::key_count(int worker) const {
  return static_cast<int64_t>(workers_[worker].keys.size());
}

bool PrefixIndex::Holds(int worker, kv::PrefixKey key) const {
  const auto it = holders_.find(key);
  if (it == holders_.end()) return false;
  return std::find(it->second.begin(), it->second.end(), worker) != it->second.end();
}

void PrefixIndex::Erase(int worker, kv::PrefixKey key) {
  const auto it = holders_.find(key);
  BATON_CHECK(it != holders_.end()) << "a worker's key is not in the index";
  WorkerSet& set = it->second;
  set.erase(std::find(set.begin(), set.end(), worker));
  if (set.empty()) holders_.erase(it);
}

}  // namespace baton::router
