#include "common/worker/worker_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include "common/telemetry/buckets.h"

namespace baton::worker {

using Labels = prometheus::Labels;

struct WorkerMetrics::Series {
  Labels labels;
  // Looked up once: SetLoad is called in every iteration of a loop.
  prometheus::Gauge& free_blocks;
  prometheus::Gauge& active_blocks;
  prometheus::Gauge& cached_blocks;
  prometheus::Gauge& held_blocks;
  prometheus::Gauge& kv_utilization;
  prometheus::Gauge& inflight;
  prometheus::Gauge& queued;
  prometheus::Histogram& queue_duration;
  prometheus::Family<prometheus::Counter>& rejections;
  prometheus::Family<prometheus::Counter>& kv_bytes;
  prometheus::Family<prometheus::Counter>& kv_failures;

  Labels With(const char* name, const std::string& value) const {
    Labels all = labels;
    all.emplace(name, value);
    return all;
  }
};

WorkerMetrics::WorkerMetrics(prometheus::Registry& registry, const std::string& role,
                             const std::string& model) {
  using prometheus::BuildCounter;
  using prometheus::BuildGauge;
  using prometheus::BuildHistogram;
  const Labels labels = {{"role", role}, {"model", model}};
  const auto with = [&labels](const char* name, const char* value) {
    Labels all = labels;
    all.emplace(name, value);
    return all;
  };
  auto& kv_blocks =
      BuildGauge().Name("baton_kv_blocks").Help("KV blocks by state.").Register(registry);
  series_.reset(new Series{
      labels, kv_blocks.Add(with("state", "free")), kv_blocks.Add(with("state", "active")),
      kv_blocks.Add(with("state", "cached")), kv_blocks.Add(with("state", "held")),
      BuildGauge()
          .Name("baton_kv_cache_utilization_ratio")
          .Help("Share of the KV blocks that are active or held.")
          .Register(registry)
          .Add(labels),
      BuildGauge()
          .Name("baton_requests_inflight")
          .Help("Requests that hold KV blocks.")
          .Register(registry)
          .Add(labels),
      BuildGauge()
          .Name("baton_requests_queued")
          .Help("Requests that wait, by stage.")
          .Register(registry)
          .Add(with("stage", "admit")),
      BuildHistogram()
          .Name("baton_queue_duration_seconds")
          .Help("From a request's arrival at this worker to the start of its work.")
          .Register(registry)
          .Add(labels, telemetry::Buckets(telemetry::kRequestSecondsBuckets)),
      BuildCounter()
          .Name("baton_rejections_total")
          .Help("Requests refused, by reason.")
          .Register(registry),
      BuildCounter()
          .Name("baton_kv_transfer_bytes_total")
          .Help("KV payload moved between workers.")
          .Register(registry),
      BuildCounter()
          .Name("baton_kv_transfer_failures_total")
          .Help("KV transfers that did not commit, by reason.")
          .Register(registry)});
}

WorkerMetrics::~WorkerMetrics() = default;

void WorkerMetrics::SetLoad(const WorkerLoad& load) {
  series_->free_blocks.Set(load.counts.free);
  series_->active_blocks.Set(load.counts.active);
  series_->cached_blocks.Set(load.counts.cached);
  series_->held_blocks.Set(load.counts.held);
  const int used = load.counts.active + load.counts.held;
  series_->kv_utilization.Set(load.counts.total > 0 ? double(used) / load.counts.total : 0);
  series_->inflight.Set(load.running);
  series_->queued.Set(load.queued);
}

void WorkerMetrics::Queued(absl::Duration duration) {
  series_->queue_duration.Observe(absl::ToDoubleSeconds(duration));
}

void WorkerMetrics::Refused(const std::string& reason) {
  series_->rejections.Add(series_->With("reason", reason)).Increment();
}

void WorkerMetrics::KvBytes(int64_t bytes, const char* direction) {
  Labels labels = series_->With("transport", "grpc");
  labels.emplace("direction", direction);
  series_->kv_bytes.Add(labels).Increment(static_cast<double>(bytes));
}

void WorkerMetrics::KvTransferFailed(const char* reason) {
  series_->kv_failures.Add(series_->With("reason", reason)).Increment();
}

}  // namespace baton::worker
