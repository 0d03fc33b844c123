#include "common/worker/worker_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/telemetry/buckets.h"

namespace baton::worker {

namespace {

const char* Name(KvDirection direction) {
  return direction == KvDirection::kSent ? "sent" : "received";
}

}  // namespace

// References are to series without further labels, or to the only one that is used often.
struct WorkerMetrics::Series {
  Series(prometheus::Registry& registry, const std::string& role, const std::string& model,
         const CacheConfig& cache, const std::vector<std::string>& transfer_failures)
      : prefill(role == "prefill"),
        set(registry, role, model),
        inflight(set.Gauge("baton_requests_inflight", "Requests that hold KV blocks.")),
        requests_queued(set.Gauges(
            "baton_requests_queued",
            "Requests by the stage that they wait for. prefill: to be computed; decode: to be "
            "admitted; transfer: computed, while their KV is being moved.",
            {{"stage", prefill ? std::vector<std::string>{"prefill", "transfer"}
                               : std::vector<std::string>{"prefill", "decode", "transfer"}}})),
        queued(requests_queued.With({role})),
        transferring(requests_queued.With({"transfer"})),
        prompt_tokens_queued(
            set.Gauge("baton_prompt_tokens_queued",
                      prefill ? "Prompt tokens that are still to be computed, shared ones once."
                              : "Tokens of the requests that wait to be admitted.")),
        queue_duration(set.Histograms(
            "baton_queue_duration_seconds",
            "Time from a request's arrival at this worker to its admission, when it gets blocks.",
            telemetry::kRequestSecondsBuckets, {telemetry::PriorityLabel()})),
        rejections(set.Counters("baton_rejections_total", "Requests refused.",
                                {{"reason",
                                  {"queue_full", "kv_pool_too_small", "deadline_unreachable",
                                   "tenant_limit", "draining", "stale_epoch"}}})),
        kv_blocks(set.Gauges("baton_kv_blocks",
                             "Pages of the KV pool; a page is a block, unless some layers have a "
                             "sliding window or are recurrent. The sum over the states is the "
                             "pool.",
                             {{"state", {"free", "active", "cached", "held"}}})),
        free_blocks(kv_blocks.With({"free"})),
        active_blocks(kv_blocks.With({"active"})),
        cached_blocks(kv_blocks.With({"cached"})),
        held_blocks(kv_blocks.With({"held"})),
        kv_utilization(set.Gauge("baton_kv_cache_utilization_ratio",
                                 "Share of the KV pool that is active or held.")),
        retained_blocks(set.Gauge("baton_kv_retained_blocks",
                                  "Cached KV blocks that requests retain, in use or not.")),
        snapshots(set.Gauge("baton_kv_snapshots",
                            "Snapshots of recurrent layers' states in the prefix cache, in use or "
                            "not. A cached prefix can be used where it has one.")),
        cache_query_tokens(set.Counter("baton_prefix_cache_query_tokens_total",
                                       "Tokens looked up in the prefix cache, once per request.")),
        cache_hit_tokens(set.Counter("baton_prefix_cache_hit_tokens_total",
                                     "Tokens found in the prefix cache, not computed again.")),
        cache_evicted_blocks(set.Counter("baton_prefix_cache_evicted_blocks_total",
                                         "Cached blocks that made room for others.")),
        kv_duration(set.Histograms(
            "baton_kv_transfer_duration_seconds",
            absl::StrCat("KV transfer time that computation does not hide: from ",
                         prefill ? "the end of a prompt's computation until the "
                                   "last of its KV has left."
                                 : "the first token's arrival to the verified "
                                   "commit, as kv_transfer_ms of an answer."),
            telemetry::kTransferSecondsBuckets, {{"transport", transfer::PlaneNames()}})),
        kv_size(set.Histograms("baton_kv_transfer_size_bytes",
                               "KV payload of a completed transfer.",
                               telemetry::kTransferBytesBuckets, MovedLabels())),
        kv_bytes(set.Counters("baton_kv_transfer_bytes_total",
                              prefill ? "KV payload sent, for failed transfers, too."
                                      : "KV payload of committed transfers, and what was sent of "
                                        "prompts that this worker computed for others.",
                              MovedLabels())),
        kv_failures(set.Counters(
            "baton_kv_transfer_failures_total",
            "KV transfers that did not complete. refused: for load, by a draining worker, as "
            "invalid; failed: the prompt could not be computed.",
            {{"reason", transfer_failures}})),
        traces(set) {
    set.Info("baton_cache_config_info",
             "Always 1; the labels have the tokens in a KV block, the number of blocks and the "
             "type of the KV.",
             {{"block_size", absl::StrCat(cache.block_tokens)},
              {"num_blocks", absl::StrCat(cache.block_count)},
              {"dtype", cache.dtype}});
  }

  std::vector<telemetry::Label> MovedLabels() const {
    std::vector<std::string> directions = {Name(KvDirection::kSent)};
    if (!prefill) directions.push_back(Name(KvDirection::kReceived));
    return {{"transport", transfer::PlaneNames()}, {"direction", directions}};
  }

  const bool prefill;
  telemetry::MetricSet set;
  prometheus::Gauge& inflight;
  telemetry::Family<prometheus::Gauge> requests_queued;
  prometheus::Gauge& queued;
  prometheus::Gauge& transferring;
  prometheus::Gauge& prompt_tokens_queued;
  telemetry::Family<prometheus::Histogram> queue_duration;
  telemetry::Family<prometheus::Counter> rejections;
  telemetry::Family<prometheus::Gauge> kv_blocks;
  prometheus::Gauge& free_blocks;
  prometheus::Gauge& active_blocks;
  prometheus::Gauge& cached_blocks;
  prometheus::Gauge& held_blocks;
  prometheus::Gauge& kv_utilization;
  prometheus::Gauge& retained_blocks;
  prometheus::Gauge& snapshots;
  prometheus::Counter& cache_query_tokens;
  prometheus::Counter& cache_hit_tokens;
  prometheus::Counter& cache_evicted_blocks;
  telemetry::Family<prometheus::Histogram> kv_duration;
  telemetry::Family<prometheus::Histogram> kv_size;
  telemetry::Family<prometheus::Counter> kv_bytes;
  telemetry::Family<prometheus::Counter> kv_failures;
  const telemetry::TraceCounters traces;
};

WorkerMetrics::WorkerMetrics(prometheus::Registry& registry, const std::string& role,
                             const std::string& model, const CacheConfig& cache,
                             const std::vector<std::string>& transfer_failures)
    : series_(std::make_unique<Series>(registry, role, model, cache, transfer_failures)) {}

WorkerMetrics::~WorkerMetrics() = default;

telemetry::MetricSet& WorkerMetrics::metrics() { return series_->set; }

const telemetry::TraceCounters& WorkerMetrics::traces() const { return series_->traces; }

void WorkerMetrics::SetLoad(const WorkerLoad& load) {
  series_->free_blocks.Set(load.counts.free);
  series_->active_blocks.Set(load.counts.active);
  series_->cached_blocks.Set(load.counts.cached);
  series_->held_blocks.Set(load.counts.held);
  series_->retained_blocks.Set(load.retained_blocks);
  series_->snapshots.Set(load.snapshots);
  const int used = load.counts.active + load.counts.held;
  series_->kv_utilization.Set(load.counts.total > 0 ? double(used) / load.counts.total : 0);
  series_->inflight.Set(load.running + load.running_jobs);
  series_->queued.Set(load.queued);
  if (!series_->prefill) series_->requests_queued.With({"prefill"}).Set(load.waiting_jobs);
  // A prefill worker's transfers begin with the computation.
  series_->transferring.Set(load.open_transfers - load.computing_transfers);
  series_->prompt_tokens_queued.Set(static_cast<double>(load.queued_tokens));
}

void WorkerMetrics::Queued(absl::Duration duration, const char* priority) {
  series_->queue_duration.With({priority}).Observe(absl::ToDoubleSeconds(duration));
}

void WorkerMetrics::Refused(const std::string& reason) {
  series_->rejections.With({absl::AsciiStrToLower(reason)}).Increment();
}

void WorkerMetrics::KvBytes(KvDirection direction, int64_t bytes, transfer::Plane plane) {
  series_->kv_bytes.With({transfer::Name(plane), Name(direction)})
      .Increment(static_cast<double>(bytes));
}

void WorkerMetrics::KvTransferred(KvDirection direction, absl::Duration duration, int64_t bytes,
                                  transfer::Plane plane) {
  const char* const transport = transfer::Name(plane);
  if (series_->prefill || direction == KvDirection::kReceived) {
    series_->kv_duration.With({transport}).Observe(absl::ToDoubleSeconds(duration));
  }
  series_->kv_size.With({transport, Name(direction)}).Observe(static_cast<double>(bytes));
}

void WorkerMetrics::KvTransferFailed(const char* reason) {
  series_->kv_failures.With({reason}).Increment();
}

void WorkerMetrics::PrefixCache(int64_t tokens, int64_t cached_tokens) {
  series_->cache_query_tokens.Increment(static_cast<double>(tokens));
  series_->cache_hit_tokens.Increment(static_cast<double>(cached_tokens));
}

void WorkerMetrics::BlocksEvicted(int count) { series_->cache_evicted_blocks.Increment(count); }

}  // namespace baton::worker
