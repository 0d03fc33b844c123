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
#include "absl/strings/strip.h"
#include "common/telemetry/buckets.h"
#include "router/fleet/worker.h"

namespace baton::router {
namespace {

constexpr int kMaxContext = 1 << 20;  // last bucket of the histograms of token counts
// Actual less predicted: below zero, the router promised too much.
constexpr double kTokensOffBuckets[] = {-16384, -4096, -1024, -256, -64,  -16,  -1,
                                        0,      16,    64,    256,  1024, 4096, 16384};
// Actual over predicted.
constexpr double kTimesOffBuckets[] = {0.1, 0.2,  0.33, 0.5, 0.67, 0.8, 0.9, 1,
                                       1.1, 1.25, 1.5,  2,   3,    5,   10};

// Why a worker's stream was given up; the others are a worker's own reasons.
telemetry::Label FailureLabel() {
  return {"reason",
          {"worker_lost", "worker_stalled", "worker_expired", "worker_suspect", "prefill_lost",
           "prefill_suspect", "draining", "queue_full"}};
}

// The reasons of refusals for load: with more workers, the request would have been served.
constexpr const char* kLoadReasons[] = {"too_many_requests", "too_many_prompt_tokens",
                                        "survivors_full", "deadline_unreachable",
                                        "ttft_slo_unreachable"};

std::vector<std::string> WorkerStates() {
  std::vector<std::string> states;
  for (int state = v1::WORKER_STATE_CONNECTING; state <= v1::WorkerState_MAX; ++state) {
    states.emplace_back(StateName(static_cast<v1::WorkerState>(state)));
  }
  return states;
}

// "system", "other", …
std::string SourceName(v1::PromptSource source) {
  if (source == v1::PROMPT_SOURCE_UNSPECIFIED) return "other";
  return absl::AsciiStrToLower(absl::StripPrefix(v1::PromptSource_Name(source), "PROMPT_SOURCE_"));
}

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

constexpr char kWarmMissHelp[] =
    "Prompts of which at least a block was computed that an earlier prompt of the tenant would "
    "have "
    "allowed to be cached. changed: the prompt differs; evicted: the worker has it no more or "
    "never "
    "had it; other_salt: the earlier prompt had another cache_salt.";

std::string MissCauseName(v1::CacheMissCause cause) {
  return cause == v1::CACHE_MISS_CAUSE_CHANGED   ? "changed"
         : cause == v1::CACHE_MISS_CAUSE_EVICTED ? "evicted"
                                                 : "other_salt";
}

telemetry::Label MissCauseLabel() { return {"cause", {"changed", "evicted", "other_salt"}}; }

// Sums over all labels.
int64_t SumOf(telemetry::Family<prometheus::Counter>& family) {
  double sum = 0;
  for (const prometheus::Counter* series : family.All()) sum += series->Value();
  return static_cast<int64_t>(sum);
}

}  // namespace

struct RouterMetrics::Families {
  Families(prometheus::Registry& registry, const std::string& model)
      : set(registry, "router", model),
        requests(set.Counters(
            "baton_requests_total",
            "Requests that have ended, by status code; finish_reason is none unless that is OK.",
            {{"code", {"OK"}}, {"finish_reason", {"stop", "length"}}})),
        prompt_tokens(set.Counter("baton_prompt_tokens_total", "Prompt tokens of ended requests.")),
        cached_prompt_tokens(
            set.Counter("baton_cached_prompt_tokens_total",
                        "Prompt tokens of ended requests that were not computed again.")),
        chat_bytes(set.Counters("baton_chat_text_bytes_total",
                                "Bytes of the text of chats, as their template writes it. known: "
                                "of which an earlier chat of the tenant had the tokens; tokenized: "
                                "the others.",
                                {{"tokens", {"known", "tokenized"}}})),
        generated_tokens(
            set.Counter("baton_generated_tokens_total", "Tokens generated for ended requests.")),
        ttft(set.Histogram("baton_time_to_first_token_seconds",
                           "Time from the receipt of a request to its first token.",
                           telemetry::kFirstTokenSecondsBuckets)),
        second_token(set.Histogram("baton_second_token_latency_seconds",
                                   "Time from the first token of a choice to its second, which "
                                   "includes the handoff from prefill to decode worker.",
                                   telemetry::kTokenSecondsBuckets)),
        inter_token(
            set.Histogram("baton_inter_token_latency_seconds",
                          "Time between two tokens of a choice, one value per token however "
                          "many tokens a message has.",
                          telemetry::kTokenSecondsBuckets)),
        time_per_output_token(set.Histogram(
            "baton_time_per_output_token_seconds",
            "Mean time per token after the first, of the longest choice of a request.",
            telemetry::kTokenSecondsBuckets)),
        duration(
            set.Histogram("baton_request_duration_seconds",
                          "Time from the receipt of a request to its end, failed ones included.",
                          telemetry::kRequestSecondsBuckets)),
        queue_duration(set.Histograms("baton_queue_duration_seconds",
                                      "Time from the receipt of a request to its first dispatch to "
                                      "workers, tokenization included.",
                                      telemetry::kRequestSecondsBuckets,
                                      {telemetry::PriorityLabel()})),
        request_prompt_tokens(set.Histogram("baton_request_prompt_tokens",
                                            "Prompt tokens of a completed request.",
                                            telemetry::CountBuckets(kMaxContext))),
        request_generated_tokens(set.Histogram("baton_request_generated_tokens",
                                               "Tokens generated for a completed request.",
                                               telemetry::CountBuckets(kMaxContext))),
        inflight(set.Gauge("baton_requests_inflight", "Requests inside the router.")),
        inflight_prompt_tokens(set.Gauge("baton_prompt_tokens_inflight",
                                         "Prompt tokens of the requests inside the router.")),
        held_bytes(set.Gauge("baton_inflight_request_bytes",
                             "Bytes of the requests inside the router, or arriving over HTTP.")),
        stored_responses(set.Gauge("baton_stored_responses",
                                   "Responses that clients of /v1/responses may continue by their "
                                   "ids; those that have expired count until the next look-up.")),
        stored_response_bytes(
            set.Gauge("baton_stored_response_bytes", "Bytes of the stored responses.")),
        stored_dropped(set.Counters("baton_stored_responses_dropped_total",
                                    "Stored responses that went without their clients deleting "
                                    "them. memory: for others, beyond --response-store-bytes; "
                                    "expired: not used for --response-store-ttl-ms.",
                                    {{"reason", {"memory", "expired"}}})),
        queued(set.Gauges("baton_requests_queued",
                          "Requests inside the router that are not tokenized yet.",
                          {{"stage", {"admit"}}})
                   .With({"admit"})),
        continuations_waiting(set.Gauge("baton_continuations_waiting",
                                        "Requests that have lost a worker and wait for another.")),
        rejections(set.Counters(
            "baton_rejections_total", "Requests refused before a worker was asked.",
            {{"reason",
              {"too_many_requests", "too_many_prompt_tokens", "too_many_request_bytes",
               "tokenizer_queue_full", "survivors_full", "deadline_unreachable",
               "ttft_slo_unreachable", "no_worker", "tenant_limit", "tenant_rate_limit"}}})),
        retries(set.Counters(
            "baton_retries_total",
            "Requests sent to another pair before their first token, by the failure before.",
            {FailureLabel()})),
        failovers(set.Counters(
            "baton_failovers_total",
            "Choices continued on another pair after their first token, by the failure before.",
            {FailureLabel()})),
        budget_exhausted(set.Counter("baton_retry_budget_exhausted_total",
                                     "Requests that failed because the retry budget was empty.")),
        orphaned(set.Counter("baton_dead_worker_sequences_total",
                             "Sequences (choices, beams) whose worker died or hung. They are not "
                             "charged to the retry budget, or are refunded.")),
        workers(set.Gauges("baton_workers", "Listed workers.",
                           {{"worker_role", {"prefill", "decode"}}, {"state", WorkerStates()}})),
        desired_workers(set.Gauges(
            "baton_desired_workers",
            "Workers that the present load wants: by the work of the prompts that arrive and wait, "
            "by the sequences and KV that are there and wait, and by the targets of --scaling-*. 0 "
            "until a worker of the role has been ready.",
            {{"worker_role", {"prefill", "decode"}}})),
        prompt_backlog(
            set.Gauges("baton_prompt_backlog_seconds",
                       "Time to compute the prompts that wait or are being computed, on all "
                       "workers of the role together, by measured costs.",
                       {{"worker_role", {"prefill", "decode"}}})),
        headroom(set.Gauges("baton_decode_headroom_ratio",
                            "Free share of the decode workers' KV pools and of the places of their "
                            "batches, as far as a step stays within --scaling-inter-token-ms. "
                            "Below 0: more wait than there are.",
                            {{"resource", {"kv", "sequences"}}})),
        predicted_ttft(set.Gauge("baton_predicted_ttft_seconds",
                                 "Mean predicted time to the first token of the requests sent "
                                 "lately; 0: there were none.")),
        predicted_inter_token(set.Gauge("baton_predicted_inter_token_seconds",
                                        "Mean time of a decode step, as measured costs predict it "
                                        "for the running sequences; 0: there are none.")),
        expirations(set.Counters("baton_worker_expirations_total",
                                 "Workers that the router forgot because they were silent for 6 s, "
                                 "unless they drained before.",
                                 {{"worker_role", {"prefill", "decode"}}})),
        cache_misses(set.Counters("baton_prefix_cache_warm_misses_total", kWarmMissHelp,
                                  {MissCauseLabel()})),
        cache_lost_seconds(set.Counters("baton_prefix_cache_lost_seconds_total",
                                        "Estimated time to compute what these misses lost.",
                                        {MissCauseLabel()})),
        route_decisions(set.Counters(
            "baton_route_decisions_total",
            "Choices of a pair. prefix: for what is cached there; load: nothing is cached on the "
            "prefill worker; local: the decode worker computes what it lacks; lent: another decode "
            "worker computes it; decode_only: there is no prefill worker; home: no report is "
            "fresh.",
            {{"decision", {"prefix", "load", "local", "lent", "decode_only", "home"}},
             {"policy", {"priced"}}})),
        pool_spills(set.Counters("baton_pool_spills_total",
                                 "Requests sent to a worker of another pool than theirs, which had "
                                 "no ready worker or no room.",
                                 {{"worker_role", {"prefill", "decode"}}})),
        slos(set.Counters("baton_slo_requests_total",
                          "Answered requests whose class has a target (--classes): for the time to "
                          "first token, or for the mean time between tokens.",
                          {{"slo", {"ttft", "inter_token"}}, {"met", {"true", "false"}}})),
        bad_classes(set.Counter("baton_classes_file_errors_total",
                                "Changes that left the file of --classes unusable. The last good "
                                "classes are kept.")),
        dropped_prompt_tokens(set.Counter("baton_dropped_prompt_tokens_total",
                                          "Prompt tokens that truncation left out.")),
        source_tokens(
            set.Counters("baton_prompt_tokens_by_source_total",
                         "Prompt tokens of ended requests with segments, by where they come from.",
                         {{"source", {"system", "history", "retrieval", "tools", "user", "other"}},
                          {"cached", {"true", "false"}}})),
        cached_tokens_off(set.Histogram("baton_route_cached_tokens_error",
                                        "Cached prompt tokens of a request, less those predicted.",
                                        kTokensOffBuckets)),
        ttft_off(set.Histogram("baton_route_ttft_ratio",
                               "Time from the decision to the first token over that predicted, if "
                               "the policy predicts one.",
                               kTimesOffBuckets)),
        discovery_failures(set.Counters("baton_discovery_failures_total",
                                        "Reads of a worker list that gave no usable list. The last "
                                        "good list is kept.",
                                        {{"source", {"file", "dns", "static"}}})),
        discovery_failing(
            set.Gauge("baton_discovery_failing_sources", "Worker lists that are out of date.")),
        score_calls(set.Counters("baton_score_calls_total",
                                 "Calls that score or embed items and have ended, by status code.",
                                 {{"kind", {"score", "embed"}}, {"code", {"OK"}}})),
        score_items(set.Counters("baton_score_items_total",
                                 "Items that such calls have answered. error: with an error.",
                                 {{"kind", {"score", "embed"}}, {"result", {"ok", "error"}}})),
        score_duration(
            set.Histogram("baton_score_duration_seconds",
                          "Time from the receipt of such a call to its end, failed ones included.",
                          telemetry::kRequestSecondsBuckets)),
        http_requests(set.Counters(
            "baton_http_requests_total",
            "HTTP requests answered, a stream when it begins. route: a path "
            "that is served, /v1/models for all models, or other.",
            {{"route", {"/v1/completions", "/v1/chat/completions"}}, {"code", {"200"}}})),
        http_connections(set.Gauge("baton_http_connections", "Open HTTP connections.")),
        http_streams(set.Gauge("baton_http_streams", "HTTP answers that are being streamed.")),
        http_refused(set.Counter("baton_http_connections_refused_total",
                                 "HTTP connections closed at once because --max-http-connections "
                                 "were open.")),
        unread_bytes(set.Gauge("baton_unread_bytes",
                               "Bytes of answers that wait for clients to read them.")),
        unread_answers(set.Counters(
            "baton_unread_answers_total",
            "Answers given up because their clients did not read them. stalled: nothing for "
            "--write-stall-timeout-ms; answer_memory, memory: more would have waited than "
            "--unread-answer-memory or --unread-memory.",
            {{"reason", {"stalled", "answer_memory", "memory"}}})),
        traces(set) {
    for (const std::string& code : telemetry::ErrorCodes()) requests.With({code, "none"});
  }

  telemetry::MetricSet set;
  telemetry::Family<prometheus::Counter> requests;
  prometheus::Counter& prompt_tokens;
  prometheus::Counter& cached_prompt_tokens;
  telemetry::Family<prometheus::Counter> chat_bytes;
  prometheus::Counter& generated_tokens;
  prometheus::Histogram& ttft;
  prometheus::Histogram& second_token;
  prometheus::Histogram& inter_token;
  prometheus::Histogram& time_per_output_token;
  prometheus::Histogram& duration;
  telemetry::Family<prometheus::Histogram> queue_duration;
  prometheus::Histogram& request_prompt_tokens;
  prometheus::Histogram& request_generated_tokens;
  prometheus::Gauge& inflight;
  prometheus::Gauge& inflight_prompt_tokens;
  prometheus::Gauge& held_bytes;
  prometheus::Gauge& stored_responses;
  prometheus::Gauge& stored_response_bytes;
  telemetry::Family<prometheus::Counter> stored_dropped;
  prometheus::Gauge& queued;
  prometheus::Gauge& continuations_waiting;
  telemetry::Family<prometheus::Counter> rejections;
  telemetry::Family<prometheus::Counter> retries;
  telemetry::Family<prometheus::Counter> failovers;
  prometheus::Counter& budget_exhausted;
  prometheus::Counter& orphaned;
  telemetry::Family<prometheus::Gauge> workers;
  telemetry::Family<prometheus::Gauge> desired_workers;
  telemetry::Family<prometheus::Gauge> prompt_backlog;
  telemetry::Family<prometheus::Gauge> headroom;
  prometheus::Gauge& predicted_ttft;
  prometheus::Gauge& predicted_inter_token;
  telemetry::Family<prometheus::Counter> expirations;
  telemetry::Family<prometheus::Counter> cache_misses;
  telemetry::Family<prometheus::Counter> cache_lost_seconds;
  telemetry::Family<prometheus::Counter> route_decisions;
  telemetry::Family<prometheus::Counter> pool_spills;
  telemetry::Family<prometheus::Counter> slos;
  prometheus::Counter& bad_classes;
  prometheus::Counter& dropped_prompt_tokens;
  telemetry::Family<prometheus::Counter> source_tokens;
  prometheus::Histogram& cached_tokens_off;
  prometheus::Histogram& ttft_off;
  telemetry::Family<prometheus::Counter> discovery_failures;
  prometheus::Gauge& discovery_failing;
  telemetry::Family<prometheus::Counter> score_calls;
  telemetry::Family<prometheus::Counter> score_items;
  prometheus::Histogram& score_duration;
  telemetry::Family<prometheus::Counter> http_requests;
  prometheus::Gauge& http_connections;
  prometheus::Gauge& http_streams;
  prometheus::Counter& http_refused;
  prometheus::Gauge& unread_bytes;
  telemetry::Family<prometheus::Counter> unread_answers;
  const telemetry::TraceCounters traces;
};

RouterMetrics::RouterMetrics(prometheus::Registry* registry, const std::string& model) {
  if (registry != nullptr) families_ = std::make_unique<Families>(*registry, model);
}

RouterMetrics::~RouterMetrics() = default;

void RouterMetrics::RequestEnded(const RequestEnd& end) {
  if (families_ == nullptr) return;
  Families& f = *families_;
  f.requests.With({absl::StatusCodeToString(end.code), FinishName(end.finish_reason)}).Increment();
  f.prompt_tokens.Increment(end.usage.prompt_tokens());
  f.cached_prompt_tokens.Increment(end.usage.cached_prompt_tokens());
  f.generated_tokens.Increment(end.usage.generated_tokens());
  f.dropped_prompt_tokens.Increment(end.usage.dropped_prompt_tokens());
  for (const v1::SourceUsage& source : end.usage.by_source()) {
    const std::string name = SourceName(source.source());
    f.source_tokens.With({name, "true"}).Increment(source.cached());
    f.source_tokens.With({name, "false"}).Increment(source.tokens() - source.cached());
  }
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

void RouterMetrics::ScoreEnded(absl::string_view kind, absl::StatusCode code,
                               const v1::ScoreUsage& usage, absl::Duration duration) {
  if (families_ == nullptr) return;
  Families& f = *families_;
  f.score_calls.With({std::string(kind), absl::StatusCodeToString(code)}).Increment();
  f.score_duration.Observe(absl::ToDoubleSeconds(duration));
  f.prompt_tokens.Increment(static_cast<double>(usage.prompt_tokens()));
  f.cached_prompt_tokens.Increment(static_cast<double>(usage.cached_prompt_tokens()));
}

void RouterMetrics::ItemAnswered(absl::string_view kind, bool ok) {
  if (families_ == nullptr) return;
  families_->score_items.With({std::string(kind), ok ? "ok" : "error"}).Increment();
}

void RouterMetrics::RequestRejected(absl::string_view reason) {
  if (families_ == nullptr) return;
  families_->rejections.With({absl::AsciiStrToLower(reason)}).Increment();
}

void RouterMetrics::CacheMissed(v1::CacheMissCause cause, absl::Duration lost) {
  if (families_ == nullptr) return;
  families_->cache_misses.With({MissCauseName(cause)}).Increment();
  families_->cache_lost_seconds.With({MissCauseName(cause)}).Increment(absl::ToDoubleSeconds(lost));
}

void RouterMetrics::RequestRetried(absl::string_view reason) {
  if (families_ == nullptr) return;
  families_->retries.With({absl::AsciiStrToLower(reason)}).Increment();
}

void RouterMetrics::RequestFailedOver(absl::string_view reason) {
  if (families_ == nullptr) return;
  families_->failovers.With({absl::AsciiStrToLower(reason)}).Increment();
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

void RouterMetrics::SecondToken(absl::Duration since_first) {
  if (families_ != nullptr) families_->second_token.Observe(absl::ToDoubleSeconds(since_first));
}

void RouterMetrics::Dispatched(absl::Duration since_receipt, v1::Priority priority) {
  if (families_ == nullptr) return;
  const char* name = priority == v1::PRIORITY_LOW    ? "low"
                     : priority == v1::PRIORITY_HIGH ? "high"
                                                     : "normal";
  families_->queue_duration.With({name}).Observe(absl::ToDoubleSeconds(since_receipt));
}

RouterMetrics::TokenGaps::TokenGaps() : buckets_(std::size(telemetry::kTokenSecondsBuckets) + 1) {}

void RouterMetrics::TokenGaps::Add(absl::Duration gap, int count) {
  if (count <= 0) return;
  // The gap counts per token, not per message: otherwise merging messages would look like slowness.
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
  families_->route_decisions.With({std::string(decision), std::string(policy)}).Increment();
}

void RouterMetrics::PoolSpilled(v1::WorkerRole role) {
  if (families_ != nullptr) families_->pool_spills.With({std::string(RoleName(role))}).Increment();
}

void RouterMetrics::SloMeasured(absl::string_view slo, bool met) {
  if (families_ == nullptr) return;
  families_->slos.With({std::string(slo), met ? "true" : "false"}).Increment();
}

void RouterMetrics::ClassesFileBad() {
  if (families_ != nullptr) families_->bad_classes.Increment();
}

void RouterMetrics::Predicted(int predicted_cached_tokens, int cached_tokens,
                              absl::Duration predicted_ttft, absl::Duration ttft) {
  if (families_ == nullptr) return;
  families_->cached_tokens_off.Observe(cached_tokens - predicted_cached_tokens);
  if (predicted_ttft <= absl::ZeroDuration()) return;
  families_->ttft_off.Observe(absl::FDivDuration(ttft, predicted_ttft));
}

void RouterMetrics::SetInflight(int requests, int64_t prompt_tokens, int queued) {
  if (families_ == nullptr) return;
  families_->queued.Set(queued);
  families_->inflight.Set(requests);
  families_->inflight_prompt_tokens.Set(static_cast<double>(prompt_tokens));
}

void RouterMetrics::ChatTokenized(size_t known_bytes, size_t bytes) {
  if (families_ == nullptr) return;
  families_->chat_bytes.With({"known"}).Increment(static_cast<double>(known_bytes));
  families_->chat_bytes.With({"tokenized"}).Increment(static_cast<double>(bytes - known_bytes));
}

void RouterMetrics::SetRequestBytes(int64_t bytes) {
  if (families_ != nullptr) families_->held_bytes.Set(static_cast<double>(bytes));
}

void RouterMetrics::SetStoredResponses(int64_t responses, int64_t bytes) {
  if (families_ == nullptr) return;
  families_->stored_responses.Set(static_cast<double>(responses));
  families_->stored_response_bytes.Set(static_cast<double>(bytes));
}

void RouterMetrics::StoredResponsesDropped(int evicted, int expired) {
  if (families_ == nullptr) return;
  families_->stored_dropped.With({"memory"}).Increment(evicted);
  families_->stored_dropped.With({"expired"}).Increment(expired);
}

void RouterMetrics::DiscoveryFailed(absl::string_view source) {
  if (families_ != nullptr) families_->discovery_failures.With({std::string(source)}).Increment();
}

void RouterMetrics::SetDiscoveryFailing(int sources) {
  if (families_ != nullptr) families_->discovery_failing.Set(sources);
}

void RouterMetrics::HttpAnswered(absl::string_view route, int code) {
  if (families_ == nullptr) return;
  families_->http_requests.With({std::string(route), std::to_string(code)}).Increment();
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

void RouterMetrics::SetUnreadBytes(int64_t bytes) {
  if (families_ != nullptr) families_->unread_bytes.Set(static_cast<double>(bytes));
}

void RouterMetrics::AnswerNotRead(absl::string_view why) {
  if (families_ != nullptr) families_->unread_answers.With({std::string(why)}).Increment();
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

void RouterMetrics::WorkerExpired(v1::WorkerRole role) {
  if (families_ != nullptr) families_->expirations.With({std::string(RoleName(role))}).Increment();
}

const telemetry::TraceCounters* RouterMetrics::traces() const {
  return families_ == nullptr ? nullptr : &families_->traces;
}

std::vector<telemetry::MetricDescription> RouterMetrics::descriptions() const {
  return families_ ? families_->set.descriptions() : std::vector<telemetry::MetricDescription>();
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
      families_->workers.With({std::string(RoleName(role)), std::string(StateName(value))})
          .Set(counts[value]);
    }
  }
}

void RouterMetrics::SetScaling(const Scaling& scaling) {
  if (families_ == nullptr) return;
  Families& f = *families_;
  f.desired_workers.With({"prefill"}).Set(scaling.prefill_workers);
  f.desired_workers.With({"decode"}).Set(scaling.decode_workers);
  f.prompt_backlog.With({"prefill"}).Set(scaling.prefill_backlog_s);
  f.prompt_backlog.With({"decode"}).Set(scaling.decode_backlog_s);
  f.headroom.With({"kv"}).Set(scaling.kv_headroom);
  f.headroom.With({"sequences"}).Set(scaling.sequence_headroom);
  f.predicted_ttft.Set(scaling.predicted_ttft_s);
  f.predicted_inter_token.Set(scaling.predicted_inter_token_s);
}

int64_t RouterMetrics::refused_for_load() const {
  if (families_ == nullptr) return 0;
  double sum = 0;
  for (const char* reason : kLoadReasons) sum += families_->rejections.With({reason}).Value();
  return static_cast<int64_t>(sum);
}

}  // namespace baton::router
