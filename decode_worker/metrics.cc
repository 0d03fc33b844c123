#include "decode_worker/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "common/telemetry/buckets.h"

namespace baton::decode_worker {

struct DecodeMetrics::Series {
  prometheus::Labels labels;
  prometheus::Histogram& transfer_duration;
  prometheus::Histogram& transfer_size;
  prometheus::Histogram& step_duration;
  prometheus::Histogram& batch_size;
  prometheus::Counter& generated_tokens;
  prometheus::Counter& preemptions;
  prometheus::Counter& host_kv_kept;
  prometheus::Counter& host_kv_restored;
  prometheus::Counter& local_prefill_tokens;
  prometheus::Counter& cache_query_tokens;
  prometheus::Counter& cache_hit_tokens;
  prometheus::Counter& cache_evicted_blocks;
  prometheus::Gauge& active_sequences;
  prometheus::Family<prometheus::Counter>& requests;
};

DecodeMetrics::DecodeMetrics(prometheus::Registry& registry, const std::string& model)
    : worker_(registry, "decode", model) {
  const prometheus::Labels labels = {{"role", "decode"}, {"model", model}};
  const prometheus::Labels grpc = {{"role", "decode"}, {"model", model}, {"transport", "grpc"}};
  const auto histogram = [&](const char* name, const char* help, const prometheus::Labels& with,
                             const std::vector<double>& buckets) -> prometheus::Histogram& {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(with, buckets);
  };
  const auto counter = [&](const char* name, const char* help) -> prometheus::Counter& {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
  };
  series_.reset(new Series{
      labels,
      histogram("baton_kv_transfer_duration_seconds",
                "From opening the Prefill call to the verified commit.", grpc,
                telemetry::Buckets(telemetry::kTransferSecondsBuckets)),
      histogram("baton_kv_transfer_size_bytes", "KV payload of a committed transfer.", grpc,
                telemetry::Buckets(telemetry::kTransferBytesBuckets)),
      histogram("baton_decode_step_duration_seconds", "One step of all running sequences.", labels,
                telemetry::Buckets(telemetry::kTokenSecondsBuckets)),
      histogram("baton_decode_batch_size",
                "Sequences in a step, whether it computes their prompts or decodes.", labels,
                telemetry::CountBuckets(4096)),
      counter("baton_decode_tokens_total", "Tokens of answers that were drawn here."),
      counter("baton_preemptions_total",
              "Sequences that gave their blocks up to others, and waited again."),
      counter("baton_host_kv_kept_bytes_total",
              "KV of preempted sequences that was copied to host memory."),
      counter("baton_host_kv_restored_bytes_total", "Of these, copied back instead of computed."),
      counter("baton_local_prefill_tokens_total",
              "Prompt tokens computed here instead of on a prefill worker."),
      counter("baton_prefix_cache_query_tokens_total",
              "Tokens of requests that entered, each request once."),
      counter("baton_prefix_cache_hit_tokens_total", "Of these, found in the prefix cache."),
      counter("baton_prefix_cache_evicted_blocks_total", "Blocks that made room for others."),
      prometheus::BuildGauge()
          .Name("baton_active_sequences")
          .Help("Sequences that are being decoded or received.")
          .Register(registry)
          .Add(labels),
      prometheus::BuildCounter()
          .Name("baton_decode_requests_total")
          .Help("Requests ended, by status code.")
          .Register(registry)});
}

DecodeMetrics::~DecodeMetrics() = default;

void DecodeMetrics::TransferCommitted(absl::Duration duration, int64_t kv_bytes) {
  series_->transfer_duration.Observe(absl::ToDoubleSeconds(duration));
  series_->transfer_size.Observe(static_cast<double>(kv_bytes));
  worker_.KvBytes(kv_bytes, "received");
}

void DecodeMetrics::Stepped(absl::Duration duration, int sequences) {
  series_->step_duration.Observe(absl::ToDoubleSeconds(duration));
  series_->batch_size.Observe(sequences);
}

void DecodeMetrics::Generated(int64_t tokens) {
  series_->generated_tokens.Increment(static_cast<double>(tokens));
}

void DecodeMetrics::Ended(absl::StatusCode code) {
  prometheus::Labels labels = series_->labels;
  labels.emplace("code", absl::StatusCodeToString(code));
  series_->requests.Add(labels).Increment();
}

void DecodeMetrics::PrefixCache(int64_t tokens, int64_t cached_tokens) {
  series_->cache_query_tokens.Increment(static_cast<double>(tokens));
  series_->cache_hit_tokens.Increment(static_cast<double>(cached_tokens));
}

void DecodeMetrics::BlocksEvicted(int count) { series_->cache_evicted_blocks.Increment(count); }

void DecodeMetrics::Preempted(int64_t count) {
  series_->preemptions.Increment(static_cast<double>(count));
}

void DecodeMetrics::SwappedOut(int64_t bytes) {
  series_->host_kv_kept.Increment(static_cast<double>(bytes));
}

void DecodeMetrics::SwappedIn(int64_t bytes) {
  series_->host_kv_restored.Increment(static_cast<double>(bytes));
}

void DecodeMetrics::PrefilledHere(int64_t tokens) {
  series_->local_prefill_tokens.Increment(static_cast<double>(tokens));
}

void DecodeMetrics::SetLoad(const worker::WorkerLoad& load) {
  worker_.SetLoad(load);
  series_->active_sequences.Set(load.running);
}

}  // namespace baton::decode_worker
