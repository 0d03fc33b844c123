#include "common/prefill/tier_metrics.h"

#include "common/telemetry/buckets.h"

namespace baton::prefill {
namespace {

const char* Name(TierLookup result) {
  switch (result) {
    case TierLookup::kLoaded:
      return "loaded";
    case TierLookup::kPartial:
      return "partial";
    case TierLookup::kAbsent:
      return "absent";
    case TierLookup::kSlower:
      return "slower";
    case TierLookup::kNoRoom:
      return "no_room";
    case TierLookup::kFailed:
      break;
  }
  return "failed";
}

const char* ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout";
    case absl::StatusCode::kDataLoss:
      return "damaged";
    case absl::StatusCode::kNotFound:
      return "gone";  // between the look-up and the load
    case absl::StatusCode::kResourceExhausted:
      return "full";
    default:
      return "unavailable";
  }
}

telemetry::Label TierLabel() { return {"tier", {"host", "file", "redis"}}; }

}  // namespace

TierMetrics::TierMetrics(telemetry::MetricSet& set)
    : lookups_(set.Counters(
          "baton_kv_tier_lookups_total",
          "Look-ups of prompts in the KV tiers, by how they ended. partial: until a store failed "
          "or "
          "computing became faster; slower: computing is expected to be; no_room: too many loads, "
          "or no blocks.",
          {{"result", {"loaded", "partial", "absent", "slower", "no_room", "failed"}}})),
      segments_(set.Counters("baton_kv_tier_segments_total",
                             "Segments loaded from and stored in a KV tier.",
                             {TierLabel(), {"operation", {"load", "store"}}})),
      bytes_(set.Counters("baton_kv_tier_bytes_total", "Bytes loaded from and stored in a KV tier.",
                          {TierLabel(), {"operation", {"load", "store"}}})),
      durations_(set.Histograms("baton_kv_tier_load_duration_seconds",
                                "One segment's load: read, checked and copied into the KV pool.",
                                telemetry::kTransferSecondsBuckets, {TierLabel()})),
      failures_(set.Counters(
          "baton_kv_tier_failures_total",
          "Calls to a KV tier that failed. damaged: the value was not the segment's, and was "
          "dropped; gone: evicted between look-up and load.",
          {TierLabel(),
           {"operation", {"look_up", "load", "store"}},
           {"reason", {"timeout", "damaged", "gone", "full", "unavailable"}}})),
      dropped_(set.Counter("baton_kv_tier_dropped_segments_total",
                           "Segments that were not stored, as too many wait to be, or as the pool "
                           "evicted them first.")),
      held_bytes_(set.Gauges("baton_kv_tier_held_bytes",
                             "Bytes in a KV tier, as far as this worker knows.", {TierLabel()})),
      held_segments_(set.Gauges("baton_kv_tier_held_segments",
                                "Segments in a KV tier, as far as this worker knows.",
                                {TierLabel()})),
      evicted_(set.Gauges("baton_kv_tier_evicted_segments",
                          "Segments that this worker has evicted from a KV tier since its start.",
                          {TierLabel()})) {}

void TierMetrics::LookedUp(TierLookup result) { lookups_.With({Name(result)}).Increment(); }

void TierMetrics::Loaded(absl::string_view tier, size_t bytes, absl::Duration took) {
  segments_.With({std::string(tier), "load"}).Increment();
  bytes_.With({std::string(tier), "load"}).Increment(static_cast<double>(bytes));
  durations_.With({std::string(tier)}).Observe(absl::ToDoubleSeconds(took));
}

void TierMetrics::Stored(absl::string_view tier, size_t bytes) {
  segments_.With({std::string(tier), "store"}).Increment();
  bytes_.With({std::string(tier), "store"}).Increment(static_cast<double>(bytes));
}

void TierMetrics::Failed(absl::string_view tier, absl::string_view operation,
                         const absl::Status& status) {
  failures_.With({std::string(tier), std::string(operation), ReasonOf(status)}).Increment();
}

void TierMetrics::SetUsage(absl::string_view tier, const kv_store::StoreUsage& usage) {
  held_bytes_.With({std::string(tier)}).Set(static_cast<double>(usage.bytes));
  held_segments_.With({std::string(tier)}).Set(static_cast<double>(usage.segments));
  evicted_.With({std::string(tier)}).Set(static_cast<double>(usage.evicted));
}

}  // namespace baton::prefill
