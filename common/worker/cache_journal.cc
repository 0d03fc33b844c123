#include "common/worker/cache_journal.h"

#include "absl/container/flat_hash_map.h"
#include "common/base/check.h"

namespace baton::worker {

void CacheJournal::Record(const kv::CacheChange& change) {
  absl::MutexLock lock(&mutex_);
  if (change.added) {
    keys_.insert(change.key);
  } else {
    keys_.erase(change.key);
  }
  changes_.push_back(change);
  if (changes_.size() > max_changes_) changes_.pop_front();
  ++end_;
}

CacheJournal::Snapshot CacheJournal::TakeSnapshot() const {
  absl::MutexLock lock(&mutex_);
  return {end_, std::vector<kv::PrefixKey>(keys_.begin(), keys_.end())};
}

std::optional<CacheJournal::Delta> CacheJournal::Since(uint64_t position) const {
  absl::MutexLock lock(&mutex_);
  BATON_CHECK_LE(position, end_);
  const uint64_t begin = end_ - changes_.size();
  if (position < begin) return std::nullopt;
  // The last change of a key says what holds now.
  absl::flat_hash_map<kv::PrefixKey, bool> latest;
  for (uint64_t i = position; i < end_; ++i) {
    const kv::CacheChange& change = changes_[i - begin];
    latest[change.key] = change.added;
  }
  Delta delta;
  delta.next_position = end_;
  for (const auto& [key, added] : latest) (added ? delta.added : delta.removed).push_back(key);
  return delta;
}

}  // namespace baton::worker
