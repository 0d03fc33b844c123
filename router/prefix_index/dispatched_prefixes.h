// What this router's dispatches will leave in the workers' caches, until the workers report it:
// without it, prompts with one beginning that arrive together would be computed on many workers.
#ifndef BATON_ROUTER_PREFIX_INDEX_DISPATCHED_PREFIXES_H_
#define BATON_ROUTER_PREFIX_INDEX_DISPATCHED_PREFIXES_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/kv/prefix_key.h"
#include "router/prefix_index/prefix_index.h"

namespace baton::router {

// Thread-safe. Times are of one clock.
class DispatchedPrefixes {
 public:
  // Only some keys of a long prompt are kept, so that a dispatch costs little: the depth that Match
  // returns is rounded down to one of them, by less than kStride blocks.
  static constexpr int kDense = KeyChain::kDense;
  static constexpr int kStride = 16;
  // Keys of all prompts, shared ones counted for each; the first to expire are dropped first.
  static constexpr int64_t kMaxKeys = 1 << 20;

  void Grow(int worker_count);
  // The worker will have the prompt's blocks, and will have reported them by `expires`.
  void Add(int worker, absl::Span<const kv::PrefixKey> chain, absl::Duration expires);
  // Works as PrefixIndex::Match.
  void Match(absl::Span<const kv::PrefixKey> chain, std::vector<int>* depths,
             absl::Span<const int> likely = {}) const;
  void DropWorker(int worker);
  void Expire(absl::Duration now);

  int64_t key_count() const { return key_count_; }

 private:
  struct Dispatch {
    int worker;
    std::vector<kv::PrefixKey> keys;  // the kept ones
  };
  // In order of their first different keys, so that those with the longest common beginnings are
  // neighbours; equal ones in any order.
  struct ByChain {
    bool operator()(const Dispatch* a, const Dispatch* b) const;
  };
  using OfWorker = std::set<const Dispatch*, ByChain>;

  // How many keys of the dispatch, from its start, other dispatches of the worker have.
  static size_t SharedKeys(const OfWorker& all, OfWorker::iterator dispatch);
  void Forget(const Dispatch& dispatch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ExpireFirst() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  PrefixIndex index_;
  mutable absl::Mutex mutex_;
  std::multimap<absl::Duration, Dispatch> dispatches_ ABSL_GUARDED_BY(mutex_);
  std::vector<OfWorker> of_worker_ ABSL_GUARDED_BY(mutex_);
  std::atomic<int64_t> key_count_{0};  // written under mutex_
};

}  // namespace baton::router

#endif  // BATON_ROUTER_PREFIX_INDEX_DISPATCHED_PREFIXES_H_
