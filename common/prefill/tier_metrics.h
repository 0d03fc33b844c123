// What the prefill worker measures of its KV tiers.
#ifndef BATON_COMMON_PREFILL_TIER_METRICS_H_
#define BATON_COMMON_PREFILL_TIER_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/kv_store/segment_store.h"
#include "common/telemetry/metric_set.h"

namespace baton::prefill {

// How a prompt's look-up in the tiers ended.
enum class TierLookup {
  kLoaded,   // all that the tiers had
  kPartial,  // some of it, until a store failed or computing became faster
  kAbsent,
  kSlower,  // computing it is expected to be faster
  kNoRoom,  // too many loads, or no blocks for it
  kFailed,  // nothing of it
};

// Thread-safe, the constructor excepted.
class TierMetrics {
 public:
  explicit TierMetrics(telemetry::MetricSet& set);

  void LookedUp(TierLookup result);
  // One segment has been read, checked and copied into the pool.
  void Loaded(absl::string_view tier, size_t bytes, absl::Duration took);
  void Stored(absl::string_view tier, size_t bytes);
  // A call to the tier's store has failed.
  void Failed(absl::string_view tier, absl::string_view operation, const absl::Status& status);
  // A segment that was used often enough was not stored: too many wait to be, or the pool has
  // evicted it first.
  void Dropped() { dropped_.Increment(); }
  void SetUsage(absl::string_view tier, const kv_store::StoreUsage& usage);

 private:
  telemetry::Family<prometheus::Counter> lookups_;
  telemetry::Family<prometheus::Counter> segments_;
  telemetry::Family<prometheus::Counter> bytes_;
  telemetry::Family<prometheus::Histogram> durations_;
  telemetry::Family<prometheus::Counter> failures_;
  prometheus::Counter& dropped_;
  telemetry::Family<prometheus::Gauge> held_bytes_;
  telemetry::Family<prometheus::Gauge> held_segments_;
  telemetry::Family<prometheus::Gauge> evicted_;
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_TIER_METRICS_H_
