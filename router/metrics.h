// The router's metrics, as events. The metrics are declared in metrics.cc only.
#ifndef BATON_ROUTER_METRICS_H_
#define BATON_ROUTER_METRICS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/admin.pb.h"
#include "baton/v1/inference.pb.h"
#include "common/telemetry/metric_set.h"
#include "common/telemetry/trace_counters.h"

namespace prometheus {
class Registry;
}

namespace baton::router {

// Thread-safe.
class RouterMetrics {
 public:
  // Without a registry all events go nowhere.
  RouterMetrics(prometheus::Registry* registry, const std::string& model);
  ~RouterMetrics();

  struct RequestEnd {
    absl::StatusCode code = absl::StatusCode::kOk;
    v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;  // of an OK request
    v1::Usage usage;
    int longest_choice_tokens = 0;
    absl::Duration duration;
    absl::Duration decode_duration;  // from the first token to the last
  };
  void RequestEnded(const RequestEnd& end);
  // A call that scores or embeds items; `kind` says which. Its prompt tokens count like those of
  // requests.
  void ScoreEnded(absl::string_view kind, absl::StatusCode code, const v1::ScoreUsage& usage,
                  absl::Duration duration);
  void ItemAnswered(absl::string_view kind, bool ok);  // else it has an error
  // RESOURCE_EXHAUSTED or UNAVAILABLE before any worker was asked.
  void RequestRejected(absl::string_view reason);
  // Sent to another pair before, or after, the first token; `reason`: why the earlier pair failed.
  void RequestRetried(absl::string_view reason);
  void RequestFailedOver(absl::string_view reason);
  void RetryBudgetExhausted();
  // Sequences whose worker has died: their retries are free.
  void OrphanedByDeath(int sequences);
  void SetContinuationsWaiting(int waiting);
  // A chat of so many bytes of text was tokenized, of which the tokens of `known_bytes` were known.
  void ChatTokenized(size_t known_bytes, size_t bytes);
  // A request was sent to workers for the first time.
  void Dispatched(absl::Duration since_receipt, v1::Priority priority);
  void FirstToken(absl::Duration since_receipt);
  void SecondToken(absl::Duration since_first);  // of a choice
  // Times between the tokens of one request, collected to lock the histogram of all requests less
  // often. For one thread at a time.
  class TokenGaps {
   public:
    TokenGaps();
    // `count` tokens came `gap` after the tokens before them.
    void Add(absl::Duration gap, int count);
    int count() const { return count_; }

   private:
    friend class RouterMetrics;
    std::vector<double> buckets_;  // as of the histogram; whole numbers
    double sum_ = 0;
    int count_ = 0;
  };
  // Adds the gaps to the histogram, and clears them.
  void NextTokens(TokenGaps* gaps);
  // Tokens were computed that would have been cached; `lost`: the time for it.
  void CacheMissed(v1::CacheMissCause cause, absl::Duration lost);
  void Routed(absl::string_view decision, absl::string_view policy);
  // The chosen worker of the role is of another pool than the request.
  void PoolSpilled(v1::WorkerRole role);
  // `slo`: "ttft" or "inter_token".
  void SloMeasured(absl::string_view slo, bool met);
  void ClassesFileBad();
  // Prediction and outcome of a decision. A predicted time of zero is none.
  void Predicted(int predicted_cached_tokens, int cached_tokens, absl::Duration predicted_ttft,
                 absl::Duration ttft);
  // queued: requests whose prompt is not known yet.
  void SetInflight(int requests, int64_t prompt_tokens, int queued);
  void SetRequestBytes(int64_t bytes);
  void SetStoredResponses(int64_t responses, int64_t bytes);
  void StoredResponsesDropped(int evicted, int expired);
  void DiscoveryFailed(absl::string_view source);
  void SetDiscoveryFailing(int sources);
  // `route`: one of a few paths. A stream is answered when it begins.
  void HttpAnswered(absl::string_view route, int code);
  void HttpConnectionsChanged(int change);
  void HttpStreamsChanged(int change);
  void HttpConnectionRefused();
  // So many bytes of answers wait for clients to read them.
  void SetUnreadBytes(int64_t bytes);
  // An answer was given up. `why`: "stalled", "answer_memory" or "memory".
  void AnswerNotRead(absl::string_view why);

  // Cumulative: counts[i] values are at most bounds_s[i]; the last count is of all values.
  struct Histogram {
    std::vector<double> bounds_s;
    std::vector<uint64_t> counts;  // one more than the bounds
  };
  // Since the start, as in /metrics.
  struct Totals {
    int requests_inflight = 0;  // now
    Histogram time_to_first_token;
    Histogram inter_token_latency;
    int64_t requests = 0;  // ended
    int64_t rejections = 0;
    int64_t prompt_tokens = 0;  // of ended requests
    int64_t cached_prompt_tokens = 0;
  };
  // nullopt without a registry.
  std::optional<Totals> ReadTotals() const;
  void SetWorkers(const std::vector<v1::WorkerStatus>& workers);
  // What an autoscaler reads.
  struct Scaling {
    double prefill_backlog_s = 0;
    double decode_backlog_s = 0;
    double kv_headroom = 0;
    double sequence_headroom = 0;
    double predicted_ttft_s = 0;
    double predicted_inter_token_s = 0;
    int prefill_workers = 0;
    int decode_workers = 0;
  };
  void SetScaling(const Scaling& scaling);
  // Requests that more workers would have served, since the start.
  int64_t refused_for_load() const;
  void WorkerExpired(v1::WorkerRole role);
  // Empty without a registry.
  const telemetry::TraceCounters* traces() const;  // null without a registry
  std::vector<telemetry::MetricDescription> descriptions() const;

 private:
  struct Families;
  std::unique_ptr<Families> families_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_METRICS_H_
