#include "common/prefill/tier_listing.h"

#include <optional>

#include "common/base/check.h"
#include "common/kv_store/segment_store.h"

namespace baton::prefill {

TierListing::TierListing(uint64_t model_fingerprint, uint64_t layout_fingerprint,
                         int segment_tokens, int64_t max_keys, worker::CacheJournal& journal)
    : model_fingerprint_(model_fingerprint),
      layout_fingerprint_(layout_fingerprint),
      segment_tokens_(segment_tokens),
      max_keys_(max_keys),
      journal_(journal) {}

void TierListing::OnChange(int store, absl::string_view key, bool held) {
  BATON_CHECK_LT(store, 32);
  const std::optional<kv_store::SegmentKey> segment = kv_store::ParseSegmentKey(key);
  if (!segment || segment->model_fingerprint != model_fingerprint_ ||
      segment->layout_fingerprint != layout_fingerprint_ || segment->tokens != segment_tokens_) {
    return;
  }
  const uint32_t bit = uint32_t{1} << store;
  const kv::PrefixKey reported = kv::TierKey(segment->prefix, segment_tokens_);
  // Recorded under the lock: routers apply changes of a key in this order.
  absl::MutexLock lock(&mutex_);
  const auto at = stores_.find(reported);
  if (held) {
    if (at != stores_.end()) {
      at->second |= bit;
    } else if (static_cast<int64_t>(stores_.size()) < max_keys_) {
      stores_.emplace(reported, bit);
      journal_.Record({.added = true, .key = reported});
    }
    return;
  }
  if (at == stores_.end()) return;
  at->second &= ~bit;
  if (at->second != 0) return;
  stores_.erase(at);
  journal_.Record({.added = false, .key = reported});
}

}  // namespace baton::prefill
