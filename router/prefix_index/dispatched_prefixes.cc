#include "router/prefix_index/dispatched_prefixes.h"

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
  absl::MutexLock lock(&mutex_);
  index_.Grow(worker_count);
  for (; worker_count_ < worker_count; ++worker_count_) {
    index_.SetCapacity(worker_count_, kMaxKeys);
  }
}

void DispatchedPrefixes::Add(int worker, absl::Span<const kv::PrefixKey> chain,
                             absl::Duration expires) {
  if (chain.empty()) return;
  absl::MutexLock lock(&mutex_);
  Dispatch dispatch = {worker, KeptKeys(chain)};
  std::vector<kv::PrefixKey> fresh;
  for (const kv::PrefixKey key : dispatch.keys) {
    if (++counts_[{worker, key}] == 1) fresh.push_back(key);
  }
  index_.Add(worker, fresh);
  key_count_ += static_cast<int64_t>(dispatch.keys.size());
  dispatches_.emplace(expires, std::move(dispatch));
  while (key_count_ > kMaxKeys) ExpireFirst();
}

// A key stays for as long as any dispatch has it, so that what a worker has of a chain is always a
// beginning of it.
void DispatchedPrefixes::Forget(const Dispatch& dispatch) {
  std::vector<kv::PrefixKey> gone;
  for (const kv::PrefixKey key : dispatch.keys) {
    const auto found = counts_.find({dispatch.worker, key});
    if (--found->second > 0) continue;
    counts_.erase(found);
    gone.push_back(key);
  }
  index_.Remove(dispatch.worker, gone);
  key_count_ -= static_cast<int64_t>(dispatch.keys.size());
}

void DispatchedPrefixes::ExpireFirst() {
  Forget(dispatches_.begin()->second);
  dispatches_.erase(dispatches_.begin());
}

void DispatchedPrefixes::Expire(absl::Duration now) {
  absl::MutexLock lock(&mutex_);
  while (!dispatches_.empty() && dispatches_.begin()->first <= now) ExpireFirst();
  index_.Sweep(KeyTable::kSegments / 16);
}

void DispatchedPrefixes::DropWorker(int worker) {
  absl::MutexLock lock(&mutex_);
  for (auto it = dispatches_.begin(); it != dispatches_.end();) {
    if (it->second.worker != worker) {
      ++it;
      continue;
    }
    Forget(it->second);
    it = dispatches_.erase(it);
  }
}

void DispatchedPrefixes::Match(absl::Span<const kv::PrefixKey> chain,
                               std::vector<int>* depths) const {
  // A router without dispatches under way need not look.
  index_.Match(KeptKeys(key_count_ == 0 ? chain.first(0) : chain), depths, [](int keys) {
    return static_cast<int>(KeptPosition(static_cast<size_t>(keys) - 1)) + 1;
  });
}

}  // namespace baton::router
