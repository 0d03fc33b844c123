#include "prefill_worker/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "common/telemetry/buckets.h"

namespace baton::prefill_worker {

struct PrefillMetrics::Series {
  prometheus::Histogram& duration;
  prometheus::Counter& query_tokens;
  prometheus::Counter& hit_tokens;
  prometheus::Counter& evicted_blocks;
};

PrefillMetrics::PrefillMetrics(prometheus::Registry& registry, const std::string& model)
    : worker_(registry, "prefill", model) {
  const prometheus::Labels labels = {{"role", "prefill"}, {"model", model}};
  const auto counter = [&](const char* name, const char* help) -> prometheus::Counter& {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
  };
  series_.reset(new Series{
      prometheus::BuildHistogram()
          .Name("baton_prefill_duration_seconds")
          .Help("Computing a prompt, from its start to its first token.")
          .Register(registry)
          .Add(labels, telemetry::Buckets(telemetry::kRequestSecondsBuckets)),
      counter("baton_prefix_cache_query_tokens_total", "Prompt tokens looked up."),
      counter("baton_prefix_cache_hit_tokens_total", "Prompt tokens found, not computed again."),
      counter("baton_prefix_cache_evicted_blocks_total", "Cached blocks given up for others.")});
}

PrefillMetrics::~PrefillMetrics() = default;

void PrefillMetrics::Started(absl::Duration queued, int prompt_tokens, int cached_tokens) {
  worker_.Queued(queued);
  series_->query_tokens.Increment(prompt_tokens);
  series_->hit_tokens.Increment(cached_tokens);
}

void PrefillMetrics::Computed(absl::Duration duration) {
  series_->duration.Observe(absl::ToDoubleSeconds(duration));
}

void PrefillMetrics::BlocksEvicted(int count) { series_->evicted_blocks.Increment(count); }

}  // namespace baton::prefill_worker
