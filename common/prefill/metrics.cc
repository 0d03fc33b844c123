#include "common/prefill/metrics.h"

#include <prometheus/histogram.h>

#include "common/telemetry/buckets.h"

namespace baton::prefill {
namespace {

constexpr double kStepGapBuckets[] = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
                                      0.01,   0.025,   0.05,   0.1,   0.25,   1};

const char* PriorityName(v1::Priority priority) {
  return priority == v1::PRIORITY_LOW ? "low" : priority == v1::PRIORITY_HIGH ? "high" : "normal";
}

}  // namespace

JobMetrics::JobMetrics(worker::WorkerMetrics& worker)
    : worker_(worker),
      duration_(worker.metrics().Histogram(
          "baton_prefill_duration_seconds",
          "Computing a prompt: the steps that had a chunk of it, without waiting and transfer.",
          telemetry::kRequestSecondsBuckets)),
      step_gap_(worker.metrics().Histogram(
          "baton_prefill_step_gap_seconds",
          "From the end of a step with prompts to the begin of the next one, if there was work for "
          "it: what the worker does between steps, while the device waits.",
          kStepGapBuckets)),
      scored_items_(worker.metrics().Counter(
          "baton_scored_items_total", "Items whose labels were scored, and inputs that were embedded.")),
      tiers_(worker.metrics()) {}

void JobMetrics::Started(const PrefillJob& job) {
  worker_.Queued(job.started_at - job.submitted_at, PriorityName(job.priority));
  worker_.PrefixCache(job.size(), job.cached_tokens);
}

void JobMetrics::Computed(absl::Duration computing) {
  duration_.Observe(absl::ToDoubleSeconds(computing));
}

PrefillMetrics::PrefillMetrics(prometheus::Registry& registry, const std::string& model,
                               const worker::CacheConfig& cache)
    : worker_(registry, "prefill", model, cache, transfer::AbortReasonNames()),
      kv_exchange_(worker_.metrics()),
      jobs_(worker_) {}

}  // namespace baton::prefill
