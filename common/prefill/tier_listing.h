// What the KV tiers of this worker have, for its reports to routers: the prefix keys of segments in
// stores that know their keys. What a store shares with other workers, such as Redis, is not
// listed: it makes no worker better than another.
#ifndef BATON_COMMON_PREFILL_TIER_LISTING_H_
#define BATON_COMMON_PREFILL_TIER_LISTING_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "common/kv/prefix_key.h"
#include "common/worker/cache_journal.h"

namespace baton::prefill {

// Thread-safe.
class TierListing {
 public:
  // Reports kv::TierKey()s of segments of this model, layout and length, at most `max_keys` at a
  // time: what is beyond that is not reported. `journal` must outlive it.
  TierListing(uint64_t model_fingerprint, uint64_t layout_fingerprint, int segment_tokens,
              int64_t max_keys, worker::CacheJournal& journal);

  // As kv_store::KeyListener, of the store with this number.
  void OnChange(int store, absl::string_view key, bool held);

 private:
  const uint64_t model_fingerprint_;
  const uint64_t layout_fingerprint_;
  const int segment_tokens_;
  const int64_t max_keys_;
  worker::CacheJournal& journal_;
  absl::Mutex mutex_;
  // The stores that have it, a bit each.
  absl::flat_hash_map<kv::PrefixKey, uint32_t> stores_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_TIER_LISTING_H_
