#include "router/prefix_index/dispatched_prefixes.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "common/base/brief_lock.h"

namespace baton::router {
namespace {

// Counts two chains' equal first keys. Equal keys stand for equal beginnings, so it bisects.
size_t CommonKeys(absl::Span<const kv::PrefixKey> a, absl::Span<const kv::PrefixKey> b) {
  size_t common = 0, end = std::min(a.size(), b.size());
  while (common < end) {
    const size_t middle = (common + end) / 2;
    if (a[middle] == b[middle]) {
      common = middle + 1;
    } else {
      end = middle;
    }
  }
  return common;
}

}  // namespace

bool DispatchedPrefixes::ByChain::operator()(const Dispatch* a, const Dispatch* b) const {
  const size_t common = CommonKeys(a->keys, b->keys);
  if (common < std::min(a->keys.size(), b->keys.size())) return a->keys[common] < b->keys[common];
  if (a->keys.size() != b->keys.size()) return a->keys.size() < b->keys.size();
  return std::less<>()(a, b);
}

size_t DispatchedPrefixes::SharedKeys(const OfWorker& all, OfWorker::iterator dispatch) {
  size_t shared = 0;
  if (dispatch != all.begin()) shared = CommonKeys((*dispatch)->keys, (*std::prev(dispatch))->keys);
  const auto next = std::next(dispatch);
  if (next != all.end()) shared = std::max(shared, CommonKeys((*dispatch)->keys, (*next)->keys));
  return shared;
}

void DispatchedPrefixes::Grow(int worker_count) {
  absl::MutexLock lock(&mutex_);
  index_.Grow(worker_count);
  while (static_cast<int>(of_worker_.size()) < worker_count) {
    index_.SetCapacity(static_cast<int>(of_worker_.size()), kMaxKeys);
    of_worker_.emplace_back();
  }
}

void DispatchedPrefixes::Add(int worker, absl::Span<const kv::PrefixKey> chain,
                             absl::Duration expires) {
  if (chain.empty()) return;
  Dispatch kept = {worker, {}};
  const KeyChain keys(chain, kStride);
  kept.keys.resize(static_cast<size_t>(keys.size()));
  for (int i = 0; i < keys.size(); ++i) kept.keys[static_cast<size_t>(i)] = keys[i];
  BriefLock lock(&mutex_);
  // Mostly the last to expire.
  const Dispatch& dispatch =
      dispatches_.emplace_hint(dispatches_.end(), expires, std::move(kept))->second;
  OfWorker& all = of_worker_[static_cast<size_t>(worker)];
  const size_t shared = SharedKeys(all, all.insert(&dispatch).first);
  index_.Add(worker, absl::MakeConstSpan(dispatch.keys).subspan(shared));
  key_count_ += static_cast<int64_t>(dispatch.keys.size());
  while (key_count_ > kMaxKeys) ExpireFirst();
}

// A key stays for as long as any dispatch has it, so that what a worker has of a chain is always a
// beginning of it.
void DispatchedPrefixes::Forget(const Dispatch& dispatch) {
  OfWorker& all = of_worker_[static_cast<size_t>(dispatch.worker)];
  const auto found = all.find(&dispatch);
  index_.Remove(dispatch.worker,
                absl::MakeConstSpan(dispatch.keys).subspan(SharedKeys(all, found)));
  all.erase(found);
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

void DispatchedPrefixes::Match(absl::Span<const kv::PrefixKey> chain, std::vector<int>* depths,
                               absl::Span<const int> likely) const {
  // A router without dispatches under way need not look.
  index_.Match(KeyChain(key_count_ == 0 ? chain.first(0) : chain, kStride), depths, likely);
}

}  // namespace baton::router
