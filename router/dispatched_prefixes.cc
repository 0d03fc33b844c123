#include "router/dispatched_prefixes.h"

#include <algorithm>

namespace baton::router {
namespace {

constexpr int kDense = DispatchedPrefixes::kDense;
constexpr int kStride = DispatchedPrefixes::kStride;

// Positions in a chain whose keys are kept: the same for all chains, or prompts of different
// lengths would not find each other.
size_t KeptCount(size_t chain_size) {
  return chain_size <= kDense ? chain_size : kDense + (chain_size - kDense) / kStride;
}
size_t KeptPosition(size_t i) {
  return i < kDense ? i : kDense + (i - kDense) * kStride + kStride - 1;
}
std::vector<kv::PrefixKey> KeptKeys(absl::Span<const kv::PrefixKey> chain) {
  std::vector<kv::PrefixKey> kept(KeptCount(chain.size()));
  for (size_t i = 0; i < kept.size(); ++i) kept[i] = chain[KeptPosition(i)];
  return kept;
}

}  // namespace

void DispatchedPrefixes::Grow(int worker_count) {
  index_.Grow(worker_count);
  for (int i = 0; i < worker_count; ++i) index_.SetCapacity(i, kMaxKeys);
}

void DispatchedPrefixes::Add(int worker, absl::Span<const kv::PrefixKey> chain,
                             absl::Duration expires) {
  if (chain.empty()) return;
  absl::MutexLock lock(&mutex_);
  Dispatch dispatch = {worker, {}};
  index_.Add(worker, KeptKeys(chain), &dispatch.keys);
  // One that brings nothing new is covered by those before it: what they bring, the worker will
  // have told of when they expire.
  if (dispatch.keys.empty()) return;
  key_count_ += static_cast<int64_t>(dispatch.keys.size());
  dispatches_.emplace(expires, std::move(dispatch));
  while (key_count_ > kMaxKeys) ExpireFirst();
}

void DispatchedPrefixes::ExpireFirst() {
  const auto first = dispatches_.begin();
  index_.Remove(first->second.worker, first->second.keys);
  key_count_ -= static_cast<int64_t>(first->second.keys.size());
  dispatches_.erase(first);
}

void DispatchedPrefixes::Expire(absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  while (!dispatches_.empty() && dispatches_.begin()->first <= now) ExpireFirst();
  index_.Sweep(KeyTable::kSegments / 16);
}

void DispatchedPrefixes::DropWorker(int worker) {
  absl::MutexLock lock(&mutex_);
  index_.DropWorker(worker);
  for (auto it = dispatches_.begin(); it != dispatches_.end();) {
    if (it->second.worker != worker) {
      ++it;
      continue;
    }
    key_count_ -= static_cast<int64_t>(it->second.keys.size());
    it = dispatches_.erase(it);
  }
}

void DispatchedPrefixes::Match(absl::Span<const kv::PrefixKey> chain,
                               std::vector<int>* depths) const {
  std::vector<int> found;
  index_.Match(KeptKeys(chain), &found);
  if (depths->size() < found.size()) depths->resize(found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i] == 0) continue;
    const int depth = static_cast<int>(KeptPosition(found[i] - 1)) + 1;
    (*depths)[i] = std::max((*depths)[i], depth);
  }
}

int64_t DispatchedPrefixes::key_count() const {
  absl::MutexLock lock(&mutex_);
  return key_count_;
}

}  // namespace baton::router
