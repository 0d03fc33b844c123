// Segments in this process's memory. They are shared with readers, never copied.
#ifndef BATON_COMMON_KV_STORE_HOST_STORE_H_
#define BATON_COMMON_KV_STORE_HOST_STORE_H_

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/kv_store/lru_index.h"
#include "common/kv_store/segment_store.h"

namespace baton::kv_store {

class HostStore final : public SegmentStore {
 public:
  // Values together have at most max_bytes; a reader may keep an evicted one a little longer.
  explicit HostStore(int64_t max_bytes) : max_bytes_(max_bytes) {}

  absl::string_view kind() const override { return "host"; }
  bool knows_its_keys() const override { return true; }
  bool in_memory() const override { return true; }
  StoreUsage usage() const override;
  void Listen(KeyListener listener) override;
  absl::StatusOr<int> CountLeading(absl::Span<const SegmentKey> keys, absl::Time deadline) override;
  absl::StatusOr<int> CountToLast(absl::Span<const SegmentKey> keys, absl::Time deadline) override;
  absl::StatusOr<SegmentBytes> Get(const SegmentKey& key, size_t max_bytes,
                                   absl::Time deadline) override;
  absl::Status Put(const SegmentKey& key, const SegmentBytes& value, absl::Time deadline) override;
  void Remove(const SegmentKey& key, absl::Time deadline) override;

 private:
  const int64_t max_bytes_;
  mutable absl::Mutex mutex_;
  LruIndex index_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, SegmentBytes> values_ ABSL_GUARDED_BY(mutex_);
  int64_t evicted_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::kv_store

#endif  // BATON_COMMON_KV_STORE_HOST_STORE_H_
