#include "router/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "absl/strings/ascii.h"
#include "common/telemetry/buckets.h"
#include "router/fleet/worker.h"

namespace baton::router {
namespace {

using prometheus::Labels;

constexpr int kMaxContext = 1 << 20;  // last bucket of the histograms of token counts
// Actual less predicted: below zero, the router promised too much.
constexpr double kTokensOffBuckets[] = {-16384, -4096, -1024, -256, -64,  -16,  -1,
                                        0,      16,    64,    256,  1024, 4096, 16384};
// Actual over predicted.
constexpr double kTimesOffBuckets[] = {0.1, 0.2,  0.33, 0.5, 0.67, 0.8, 0.9, 1,
                                       1.1, 1.25, 1.5,  2,   3,    5,   10};

std::string FinishName(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_STOP     ? "stop"
         : reason == v1::FINISH_REASON_LENGTH ? "length"
                                              : "none";
}

RouterMetrics::Histogram ReadHistogram(const prometheus::Histogram& histogram) {
  RouterMetrics::Histogram read;
  for (const auto& bucket : histogram.Collect().histogram.bucket) {
    read.counts.push_back(bucket.cumulative_count);
    if (std::isfinite(bucket.upper_bound)) read.bounds_s.push_back(bucket.upper_bound);
  }
  return read;
}

// Of all labels.
int64_t SumOf(const prometheus::Family<prometheus::Counter>& family) {
  double sum = 0;
  for (const prometheus::MetricFamily& collected : family.Collect()) {
    for (const prometheus::ClientMetric& metric : collected.metric) sum += metric.counter.value;
  }
  return static_cast<int64_t>(sum);
}

}  // namespace

struct RouterMetrics::Families {
  Families(prometheus::Registry& registry, const std::string& model)
      : common({{"model", model}, {"role", "router"}}),
        requests(Counter(registry, "baton_requests_total", "Requests answered.")),
        rejections(Counter(registry, "baton_rejections_total",
                           "Requests refused before a worker was asked.")),
        retries(Counter(registry, "baton_retries_total",
                        "Requests sent to another pair of workers before their first token.")),
        failovers(Counter(registry, "baton_failovers_total",
                          "Streams continued on another pair of workers after their first token.")),
        budget_exhausted(Counter(registry, "baton_retry_budget_exhausted_total",
                                 "Retries not made, as there were too many for the load.")
                             .Add({})),
        orphaned(Counter(registry, "baton_dead_worker_sequences_total",
                         "Sequences whose worker died, and that went on at no cost to the retry "
                         "budget.")
                     .Add({})),
        continuations_waiting(Gauge(registry, "baton_continuations_waiting",
                                    "Streams that have lost a worker and wait for another one.")
                                  .Add({})),
        route_decisions(
            Counter(registry, "baton_route_decisions_total", "Choices of a pair of workers.")),
        cached_tokens_off(Histogram(registry, "baton_route_cached_tokens_error",
                                    "Cached prompt tokens of a request less those predicted.",
                                    kTokensOffBuckets)),
        ttft_off(Histogram(registry, "baton_route_ttft_ratio",
                           "Time to first token from the decision on, over that predicted.",
                           kTimesOffBuckets)),
        prompt_tokens(Counter(registry, "baton_prompt_tokens_total", "Prompt tokens.").Add({})),
        cached_prompt_tokens(Counter(registry, "baton_cached_prompt_tokens_total",
                                     "Prompt tokens not computed again.")
                                 .Add({})),
        generated_tokens(
            Counter(registry, "baton_generated_tokens_total", "Tokens generated.").Add({})),
        ttft(Histogram(registry, "baton_time_to_first_token_seconds",
                       "From the receipt of a request to its first token.",
                       telemetry::kFirstTokenSecondsBuckets)),
        inter_token(Histogram(registry, "baton_inter_token_latency_seconds",
                              "Between tokens, each token of a message counted.",
                              telemetry::kTokenSecondsBuckets)),
        time_per_output_token(
            Histogram(registry, "baton_time_per_output_token_seconds",
                      "Mean time per token after the first, of a request's longest choice.",
                      telemetry::kTokenSecondsBuckets)),
        duration(Histogram(registry, "baton_request_duration_seconds",
                           "From the receipt of a request to its end, failed ones included.",
                           telemetry::kRequestSecondsBuckets)),
        request_prompt_tokens(Histogram(registry, "baton_request_prompt_tokens",
                                        "Prompt tokens of a request.",
                                        telemetry::CountBuckets(kMaxContext))),
        request_generated_tokens(Histogram(registry, "baton_request_generated_tokens",
                                           "Tokens generated for a request.",
                                           telemetry::CountBuckets(kMaxContext))),
        inflight(Gauge(registry, "baton_requests_inflight", "Requests inside the router.").Add({})),
        inflight_prompt_tokens(Gauge(registry, "baton_prompt_tokens_inflight",
                                     "Prompt tokens of the requests inside the router.")
                                   .Add({})),
        discovery_failures(Counter(registry, "baton_discovery_failures_total",
                                   "Looks at a list of workers that brought no usable one.")),
        discovery_failing(Gauge(registry, "baton_discovery_failing_sources",
                                "Lists of workers that are older than they should be.")
                              .Add({})),
        http_requests(Counter(registry, "baton_http_requests_total", "HTTP requests answered.")),
        http_connections(
            Gauge(registry, "baton_http_connections", "HTTP connections that are open.").Add({})),
        http_streams(Gauge(registry, "baton_http_streams", "Answers being streamed.").Add({})),
        http_refused(Counter(registry, "baton_http_connections_refused_total",
                             "HTTP connections closed at once, as too many were open.")
                         .Add({})),
        workers(Gauge(registry, "baton_workers", "Workers by role and state.")) {}

  prometheus::Family<prometheus::Counter>& Counter(prometheus::Registry& registry,
                                                   const std::string& name,
                                                   const std::string& help) const {
    return prometheus::BuildCounter().Name(name).Help(help).Labels(common).Register(registry);
  }
  prometheus::Family<prometheus::Gauge>& Gauge(prometheus::Registry& registry,
                                               const std::string& name,
                                               const std::string& help) const {
    return prometheus::BuildGauge().Name(name).Help(help).Labels(common).Register(registry);
  }
  prometheus::Histogram& Histogram(prometheus::Registry& registry, const std::string& name,
                                   const std::string& help, absl::Span<const double> bounds) const {
    return prometheus::BuildHistogram().Name(name).Help(help).Labels(common).Register(registry).Add(
        {}, telemetry::Buckets(bounds));
  }

  const Labels common;
  prometheus::Family<prometheus::Counter>& requests;
  prometheus::Family<prometheus::Counter>& rejections;
  prometheus::Family<prometheus::Counter>& retries;
  prometheus::Family<prometheus::Counter>& failovers;
  prometheus::Counter& budget_exhausted;
  prometheus::Counter& orphaned;
  prometheus::Gauge& continuations_waiting;
  prometheus::Family<prometheus::Counter>& route_decisions;
  prometheus::Histogram& cached_tokens_off;
  prometheus::Histogram& ttft_off;
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& cached_prompt_tokens;
  prometheus::Counter& generated_tokens;
  prometheus::Histogram& ttft;
  prometheus::Histogram& inter_token;
  prometheus::Histogram& time_per_output_token;
  prometheus::Histogram& duration;
  prometheus::Histogram& request_prompt_tokens;
  prometheus::Histogram& request_generated_tokens;
  prometheus::Gauge& inflight;
  prometheus::Gauge& inflight_prompt_tokens;
  prometheus::Family<prometheus::Counter>& discovery_failures;
  prometheus::Gauge& discovery_failing;
  prometheus::Family<prometheus::Counter>& http_requests;
  prometheus::Gauge& http_connections;
  prometheus::Gauge& http_streams;
  prometheus::Counter& http_refused;
  prometheus::Family<prometheus::Gauge>& workers;
};

RouterMetrics::RouterMetrics(prometheus::Registry* registry, const std::string& model) {
  if (registry != nullptr) families_ = std::make_unique<Families>(*registry, model);
}

RouterMetrics::~RouterMetrics() = default;

void RouterMetrics::RequestEnded(const RequestEnd& end) {
  if (families_ == nullptr) return;
  Families& f = *families_;
  f.requests
      .Add({{"code", absl::StatusCodeToString(end.code)},
            {"finish_reason", FinishName(end.finish_reason)}})
      .Increment();
  f.prompt_tokens.Increment(end.usage.prompt_tokens());
  f.cached_prompt_tokens.Increment(end.usage.cached_prompt_tokens());
  f.generated_tokens.Increment(end.usage.generated_tokens());
  f.duration.Observe(absl::ToDoubleSeconds(end.duration));
  if (end.code != absl::StatusCode::kOk) return;
  f.request_prompt_tokens.Observe(end.usage.prompt_tokens());
  f.request_generated_tokens.Observe(end.usage.generated_tokens());
  // Choices are written side by side: the time is that of the longest.
  if (end.longest_choice_tokens > 1) {
    f.time_per_output_token.Observe(absl::ToDoubleSeconds(end.decode_duration) /
                                    (end.longest_choice_tokens - 1));
  }
}

void RouterMetrics::RequestRejected(absl::string_view reason) {
  if (families_ == nullptr) return;
  families_->rejections.Add({{"reason", absl::AsciiStrToLower(reason)}}).Increment();
}

void RouterMetrics::RequestRetried(absl::string_view reason) {
  if (families_ == nullptr) return;
  families_->retries.Add({{"reason", absl::AsciiStrToLower(reason)}}).Increment();
}

void RouterMetrics::RequestFailedOver(absl::string_view reason) {
  if (families_ == nullptr) return;
  families_->failovers.Add({{"reason", absl::AsciiStrToLower(reason)}}).Increment();
}

void RouterMetrics::RetryBudgetExhausted() {
  if (families_ != nullptr) families_->budget_exhausted.Increment();
}

void RouterMetrics::OrphanedByDeath(int sequences) {
  if (families_ != nullptr) families_->orphaned.Increment(sequences);
}

void RouterMetrics::SetContinuationsWaiting(int waiting) {
  if (families_ != nullptr) families_->continuations_waiting.Set(waiting);
}

void RouterMetrics::FirstToken(absl::Duration since_receipt) {
  if (families_ != nullptr) families_->ttft.Observe(absl::ToDoubleSeconds(since_receipt));
}

RouterMetrics::TokenGaps::TokenGaps() : buckets_(std::size(telemetry::kTokenSecondsBuckets) + 1) {}

void RouterMetrics::TokenGaps::Add(absl::Duration gap, int count) {
  if (count <= 0) return;
  // Per token, not per message: otherwise merging messages would look like slowness.
  const double each = absl::ToDoubleSeconds(gap) / count;
  const auto& bounds = telemetry::kTokenSecondsBuckets;
  const auto bucket = std::lower_bound(std::begin(bounds), std::end(bounds), each);
  buckets_[bucket - std::begin(bounds)] += count;
  sum_ += each * count;
  count_ += count;
}

void RouterMetrics::NextTokens(TokenGaps* gaps) {
  if (gaps->count_ == 0) return;
  if (families_ != nullptr) families_->inter_token.ObserveMultiple(gaps->buckets_, gaps->sum_);
  std::fill(gaps->buckets_.begin(), gaps->buckets_.end(), 0);
  gaps->sum_ = 0;
  gaps->count_ = 0;
}

void RouterMetrics::Routed(absl::string_view decision, absl::string_view policy) {
  if (families_ == nullptr) return;
  families_->route_decisions
      .Add({{"decision", std::string(decision)}, {"policy", std::string(policy)}})
      .Increment();
}

void RouterMetrics::Predicted(int predicted_cached_tokens, int cached_tokens,
                              absl::Duration predicted_ttft, absl::Duration ttft) {
  if (families_ == nullptr) return;
  families_->cached_tokens_off.Observe(cached_tokens - predicted_cached_tokens);
  if (predicted_ttft <= absl::ZeroDuration()) return;
  families_->ttft_off.Observe(absl::FDivDuration(ttft, predicted_ttft));
}

void RouterMetrics::SetInflight(int requests, int64_t prompt_tokens) {
  if (families_ == nullptr) return;
  families_->inflight.Set(requests);
  families_->inflight_prompt_tokens.Set(static_cast<double>(prompt_tokens));
}

void RouterMetrics::DiscoveryFailed(absl::string_view source) {
  if (families_ == nullptr) return;
  families_->discovery_failures.Add({{"source", std::string(source)}}).Increment();
}

void RouterMetrics::SetDiscoveryFailing(int sources) {
  if (families_ != nullptr) families_->discovery_failing.Set(sources);
}

void RouterMetrics::HttpAnswered(absl::string_view route, int code) {
  if (families_ == nullptr) return;
  families_->http_requests.Add({{"route", std::string(route)}, {"code", std::to_string(code)}})
      .Increment();
}

void RouterMetrics::HttpConnectionsChanged(int change) {
  if (families_ != nullptr) families_->http_connections.Increment(change);
}

void RouterMetrics::HttpStreamsChanged(int change) {
  if (families_ != nullptr) families_->http_streams.Increment(change);
}

void RouterMetrics::HttpConnectionRefused() {
  if (families_ != nullptr) families_->http_refused.Increment();
}

std::optional<RouterMetrics::Totals> RouterMetrics::ReadTotals() const {
  if (families_ == nullptr) return std::nullopt;
  Totals totals;
  totals.requests_inflight = static_cast<int>(families_->inflight.Value());
  totals.time_to_first_token = ReadHistogram(families_->ttft);
  totals.inter_token_latency = ReadHistogram(families_->inter_token);
  totals.requests = SumOf(families_->requests);
  totals.rejections = SumOf(families_->rejections);
  totals.prompt_tokens = static_cast<int64_t>(families_->prompt_tokens.Value());
  totals.cached_prompt_tokens = static_cast<int64_t>(families_->cached_prompt_tokens.Value());
  return totals;
}

void RouterMetrics::SetWorkers(const std::vector<v1::WorkerStatus>& workers) {
  if (families_ == nullptr) return;
  for (auto role : {v1::WORKER_ROLE_PREFILL, v1::WORKER_ROLE_DECODE}) {
    std::map<v1::WorkerState, int> counts;
    for (const v1::WorkerStatus& worker : workers) {
      if (worker.role() == role) ++counts[worker.state()];
    }
    // All states, so that one which empties goes to 0 and does not stand still.
    for (int state = v1::WORKER_STATE_CONNECTING; state <= v1::WorkerState_MAX; ++state) {
      const auto value = static_cast<v1::WorkerState>(state);
      families_->workers
          .Add({{"worker_role", std::string(RoleName(role))},
                {"state", std::string(StateName(value))}})
          .Set(counts[value]);
    }
  }
}

}  // namespace baton::router
