#include "decode_worker/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <algorithm>

#include "common/telemetry/buckets.h"

namespace baton::decode_worker {
namespace {

constexpr int kMostSequences = 4096;  // last bucket of the histogram of batch sizes

const char* PriorityName(Priority priority) {
  return priority == Priority::kLow ? "low" : priority == Priority::kHigh ? "high" : "normal";
}

const char* RecomputeName(DecodeMetrics::Recompute reason) {
  using Recompute = DecodeMetrics::Recompute;
  return reason == Recompute::kPreemption       ? "preemption"
         : reason == Recompute::kTransferFailed ? "transfer_failed"
                                                : "failover";
}

std::vector<std::string> AllCodes() {
  std::vector<std::string> codes = telemetry::ErrorCodes();
  codes.insert(codes.begin(), "OK");
  return codes;
}

}  // namespace

struct DecodeMetrics::Series {
  explicit Series(telemetry::MetricSet& set)
      : step_duration(set.Histogram("baton_decode_step_duration_seconds",
                                    "One step of all running sequences.",
                                    telemetry::kTokenSecondsBuckets)),
        batch_size(set.Histogram(
            "baton_decode_batch_size",
            "Sequences in a step, whether it computes their prompts or their next tokens.",
            telemetry::CountBuckets(kMostSequences))),
        generated_tokens(set.Counter(
            "baton_decode_tokens_total",
            "Tokens of answers drawn here, without first tokens that arrived with the KV.")),
        drafted_steps(set.Counter(
            "baton_decode_drafted_steps_total",
            "Steps with drafts, each counted once for every sequence that had some. Accepted "
            "drafts divided by it, plus 1, are the tokens that such a step adds to a sequence.")),
        draft_tokens(set.Counter("baton_decode_draft_tokens_total",
                                 "Tokens drafted by speculative decoding.")),
        accepted_draft_tokens(
            set.Counter("baton_decode_accepted_draft_tokens_total",
                        "Drafted tokens that were drawn. A step draws one more than it accepts.")),
        drafting_seconds(set.Counter("baton_decode_drafting_seconds_total",
                                     "Time that a draft model or MTP head took between steps: for "
                                     "drafts, and for the tokens "
                                     "that it computes before it can make them.")),
        requests(set.Counters("baton_decode_requests_total", "Requests that have ended.",
                              {{"code", AllCodes()}})),
        active_sequences(
            set.Gauge("baton_active_sequences", "Sequences that are being decoded or received.")),
        active_context_tokens(set.Gauge(
            "baton_active_context_tokens",
            "Tokens of all active sequences; divided by their number, the mean context.")),
        transfers(set.Counters(
            "baton_kv_transfers_total",
            "KV transfers that this worker has requested. mapped: it reads the prefill worker's "
            "memory, on the same host; opened: its device does, by CUDA IPC; linked: over a link "
            "between their devices. The others come over gRPC: off, by --kv-transport; "
            "not_offered, by another host, or a prefill worker that does not share its memory or "
            "has no device to link; connecting, until the memory or the link is open; failed, "
            "since that, or reading it, failed; unproven, since a device read other bytes of a "
            "probe block than the prefill worker has written, or none in time.",
            {{"reason", transfer::PlaneReasonNames()}})),
        preemptions(set.Counters("baton_preemptions_total",
                                 "Sequences that lost their blocks to higher-ranked ones. swap: "
                                 "their KV was copied to host memory; recompute: it was not.",
                                 {{"mode", {"recompute", "swap"}}})),
        recomputed(preemptions.With({"recompute"})),
        swapped(preemptions.With({"swap"})),
        recomputes(set.Counters(
            "baton_recomputes_total",
            "Times that the KV of a sequence is computed again, what a cache still has excepted. "
            "preemption: it was not kept; transfer_failed: here, after a preemption, since a "
            "prefill worker did not send it; failover: the request's worker was lost.",
            {{"reason",
              {RecomputeName(Recompute::kPreemption), RecomputeName(Recompute::kTransferFailed),
               RecomputeName(Recompute::kFailover)}}})),
        host_kv_kept(set.Counter("baton_host_kv_kept_bytes_total",
                                 "KV of preempted sequences that was copied to host memory.")),
        host_kv_restored(set.Counter("baton_host_kv_restored_bytes_total",
                                     "KV of preempted sequences that was copied back.")),
        local_prefill_tokens(
            set.Counter("baton_local_prefill_tokens_total",
                        "Prompt tokens computed here instead of on a prefill worker.")),
        link_rates(set.Gauges(
            "baton_kv_link_bytes_per_second",
            "How fast KV comes from the prefill workers that it came from last, at most 32, "
            "without the time in which they compute. 0 until it is measured.",
            {{"link", {"slowest", "median", "fastest"}}})) {}

  prometheus::Histogram& step_duration;
  prometheus::Histogram& batch_size;
  prometheus::Counter& generated_tokens;
  prometheus::Counter& drafted_steps;
  prometheus::Counter& draft_tokens;
  prometheus::Counter& accepted_draft_tokens;
  prometheus::Counter& drafting_seconds;
  telemetry::Family<prometheus::Counter> requests;
  prometheus::Gauge& active_sequences;
  prometheus::Gauge& active_context_tokens;
  telemetry::Family<prometheus::Counter> transfers;
  telemetry::Family<prometheus::Counter> preemptions;
  prometheus::Counter& recomputed;
  prometheus::Counter& swapped;
  telemetry::Family<prometheus::Counter> recomputes;
  prometheus::Counter& host_kv_kept;
  prometheus::Counter& host_kv_restored;
  prometheus::Counter& local_prefill_tokens;
  // Not one for each peer: workers come and go with new names.
  telemetry::Family<prometheus::Gauge> link_rates;
};

DecodeMetrics::DecodeMetrics(prometheus::Registry& registry, const std::string& model,
                             const worker::CacheConfig& cache)
    : worker_(registry, "decode", model, cache, transfer::AbortReasonNames()),
      series_(std::make_unique<Series>(worker_.metrics())),
      kv_exchange_(worker_.metrics()),
      jobs_(worker_) {}

DecodeMetrics::~DecodeMetrics() = default;

void DecodeMetrics::Admitted(absl::Duration queued, Priority priority) {
  worker_.Queued(queued, PriorityName(priority));
}

void DecodeMetrics::TransferStarted(transfer::PlaneReason plane) {
  series_->transfers.With({transfer::Name(plane)}).Increment();
}

void DecodeMetrics::TransferCommitted(absl::Duration after,
                                      const transfer::TransferSummary& summary) {
  using transfer::Plane;
  using worker::KvDirection;
  worker_.KvTransferred(KvDirection::kReceived, after, summary.kv_bytes,
                        summary.shared_kv_bytes > 0   ? summary.shared_plane
                        : summary.linked_kv_bytes > 0 ? Plane::kNccl
                                                      : Plane::kGrpc);
  worker_.KvBytes(KvDirection::kReceived,
                  summary.kv_bytes - summary.shared_kv_bytes - summary.linked_kv_bytes,
                  Plane::kGrpc);
  if (summary.shared_kv_bytes > 0) {
    worker_.KvBytes(KvDirection::kReceived, summary.shared_kv_bytes, summary.shared_plane);
  }
  worker_.KvBytes(KvDirection::kReceived, summary.linked_kv_bytes, Plane::kNccl);
}

void DecodeMetrics::Stepped(absl::Duration duration, int sequences) {
  series_->step_duration.Observe(absl::ToDoubleSeconds(duration));
  series_->batch_size.Observe(sequences);
}

void DecodeMetrics::Generated(int64_t tokens) {
  series_->generated_tokens.Increment(static_cast<double>(tokens));
}

void DecodeMetrics::Drafting(absl::Duration took) {
  series_->drafting_seconds.Increment(absl::ToDoubleSeconds(took));
}

void DecodeMetrics::Drafted(int64_t steps, int64_t drafted, int64_t accepted) {
  series_->drafted_steps.Increment(static_cast<double>(steps));
  series_->draft_tokens.Increment(static_cast<double>(drafted));
  series_->accepted_draft_tokens.Increment(static_cast<double>(accepted));
}

void DecodeMetrics::Ended(absl::StatusCode code) {
  series_->requests.With({absl::StatusCodeToString(code)}).Increment();
}

void DecodeMetrics::Preempted(bool swapped, int64_t count) {
  (swapped ? series_->swapped : series_->recomputed).Increment(static_cast<double>(count));
}

void DecodeMetrics::SwappedOut(int64_t bytes) {
  series_->host_kv_kept.Increment(static_cast<double>(bytes));
}

void DecodeMetrics::SwappedIn(int64_t bytes) {
  series_->host_kv_restored.Increment(static_cast<double>(bytes));
}

void DecodeMetrics::Recomputed(Recompute reason) {
  series_->recomputes.With({RecomputeName(reason)}).Increment();
}

void DecodeMetrics::PrefilledHere(int64_t tokens) {
  series_->local_prefill_tokens.Increment(static_cast<double>(tokens));
}

void DecodeMetrics::SetLoad(const worker::WorkerLoad& load) {
  worker_.SetLoad(load);
  series_->active_sequences.Set(load.running);
  series_->active_context_tokens.Set(static_cast<double>(load.context_tokens));
}

void DecodeMetrics::SetLinks(std::vector<double> bytes_per_second) {
  if (bytes_per_second.empty()) bytes_per_second.push_back(0);
  std::sort(bytes_per_second.begin(), bytes_per_second.end());
  series_->link_rates.With({"slowest"}).Set(bytes_per_second.front());
  series_->link_rates.With({"median"}).Set(bytes_per_second[bytes_per_second.size() / 2]);
  series_->link_rates.With({"fastest"}).Set(bytes_per_second.back());
}

}  // namespace baton::decode_worker
