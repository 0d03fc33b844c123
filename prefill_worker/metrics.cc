#include "prefill_worker/metrics.h"

#include <prometheus/histogram.h>

#include "common/telemetry/buckets.h"

namespace baton::prefill_worker {
namespace {

const char* PriorityName(v1::Priority priority) {
  return priority == v1::PRIORITY_LOW ? "low" : priority == v1::PRIORITY_HIGH ? "high" : "normal";
}

}  // namespace

PrefillMetrics::PrefillMetrics(prometheus::Registry& registry, const std::string& model,
                               const worker::CacheConfig& cache)
    : worker_(registry, "prefill", model, cache, transfer::AbortReasonNames()),
      duration_(worker_.metrics().Histogram(
          "baton_prefill_duration_seconds",
          "Computing a prompt: the steps that it was part of, without waiting and transfer.",
          telemetry::kRequestSecondsBuckets)),
      scored_items_(worker_.metrics().Counter(
          "baton_scored_items_total", "Items of Score and ScoreStream whose labels were scored.")),
      kv_exchange_(worker_.metrics()),
      tiers_(worker_.metrics()) {}

void PrefillMetrics::Started(const PrefillJob& job) {
  worker_.Queued(job.started_at - job.submitted_at, PriorityName(job.priority));
  worker_.PrefixCache(job.size(), job.cached_tokens);
}

void PrefillMetrics::Computed(absl::Duration computing) {
  duration_.Observe(absl::ToDoubleSeconds(computing));
}

}  // namespace baton::prefill_worker
