// The content of the prefix cache and its changes, for the Watch streams.
#ifndef BATON_COMMON_WORKER_CACHE_JOURNAL_H_
#define BATON_COMMON_WORKER_CACHE_JOURNAL_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "common/kv/radix_cache.h"

namespace baton::worker {

// Thread-safe: the loop records, streams read.
class CacheJournal {
 public:
  // max_changes: how many changes are kept for slow readers; a reader that is further behind takes
  // a new snapshot.
  explicit CacheJournal(size_t max_changes = 1 << 16) : max_changes_(max_changes) {}

  void Record(const kv::CacheChange& change);

  struct Snapshot {
    uint64_t position = 0;  // of the next change
    std::vector<kv::PrefixKey> keys;
  };
  Snapshot TakeSnapshot() const;

  // The net effect of all changes from `position` on, at most one entry per key.
  // nullopt if some of these changes are no longer kept.
  struct Delta {
    uint64_t next_position = 0;
    std::vector<kv::PrefixKey> added;
    std::vector<kv::PrefixKey> removed;
  };
  std::optional<Delta> Since(uint64_t position) const;

 private:
  const size_t max_changes_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_set<kv::PrefixKey> keys_ ABSL_GUARDED_BY(mutex_);
  std::deque<kv::CacheChange> changes_ ABSL_GUARDED_BY(mutex_);
  uint64_t end_ ABSL_GUARDED_BY(mutex_) = 0;  // one past the last change
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_CACHE_JOURNAL_H_
