// A whole router: tokenizer, roster, watches, gRPC services, /metrics. main.cc and tests start
// it alike.
#ifndef BATON_ROUTER_SERVER_H_
#define BATON_ROUTER_SERVER_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/awake_clock.h"
#include "common/base/rpc/server.h"
#include "common/chat/model_chat.h"
#include "common/telemetry/metrics.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tracing/tracer.h"
#include "router/api/service.h"
#include "router/fleet/discovery.h"
#include "router/fleet/roster.h"
#include "router/fleet/worker_sources.h"
#include "router/fleet/worker_watch.h"
#include "router/http/cors.h"
#include "router/http/http_server.h"
#include "router/http/openai_service.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/access.h"
#include "router/request/admission.h"
#include "router/request/call_registry.h"
#include "router/request/call_watch.h"
#include "router/request/continuation_line.h"
#include "router/request/grpc_worker_network.h"
#include "router/request/item_shares.h"
#include "router/request/prefix_warmer.h"
#include "router/request/prompt_history.h"
#include "router/request/request_class.h"
#include "router/request/retry_budget.h"
#include "router/request/router_parts.h"
#include "router/request/tenant_limits.h"
#include "router/request/tokenized_texts.h"
#include "router/request/unread_answers.h"
#include "router/request/work_pool.h"
#include "router/routing/decision_log.h"
#include "router/routing/policy.h"
#include "router/routing/route_planner.h"
#include "router/score/rerank_prompt.h"

namespace baton::router {

// For one thread, except where a method says otherwise.
class RouterServer {
 public:
  // Validates the options; fails if the tokenizer does not load or an address cannot be bound.
  // Workers need not be there yet: the health service says when a pair is ready.
  // `clock` must outlive the server.
  static absl::StatusOr<std::unique_ptr<RouterServer>> Start(Options options,
                                                             const Clock& clock = Clock::Real());
  ~RouterServer();

  const std::string& address() const { return rpc_->address(); }
  // "" without --http-listen.
  std::string http_address() const { return http_ ? http_->address() : ""; }
  std::string metrics_address() const {
    return metrics_endpoint_ ? metrics_endpoint_->address() : "";
  }

  // Sets NOT_SERVING and refuses new calls (DRAINING), also on new connections, which are accepted
  // until the end. Waits until the running calls have ended or `grace` is over, then ends them with
  // ROUTER_STOPPED. Until then a running call loses nothing by the drain: a queued one still gets a
  // worker, and one that loses its worker gets another. Idempotent.
  void Drain(absl::Duration grace);
  // Ends every call now with ROUTER_STOPPED; a Drain() in another thread then returns. Thread-safe.
  void Stop();

 private:
  // What may fail before the rest is there.
  struct Loaded {
    std::unique_ptr<tokenizer::Tokenizer> tokenizer;
    std::optional<chat::ModelChat> chat;
    std::unique_ptr<telemetry::MetricsEndpoint> metrics_endpoint;  // null: no /metrics
    std::unique_ptr<security::ApiKeys> api_keys;                   // null: calls need none
    std::unique_ptr<security::SharedSecret> worker_secret;         // null: none is sent
    std::unique_ptr<RequestClasses> classes;                       // null: those of the flags
    std::optional<RerankPrompt> rerank;
  };
  static absl::StatusOr<Loaded> Load(const Options& options, const Clock& clock);
  RouterServer(Options options, const Clock& clock, Loaded loaded);
  absl::Status Listen();
  absl::Status ListenForHttp();
  std::vector<std::unique_ptr<WorkerSource>> Sources();
  Discovery::Events DiscoveryEvents();
  std::unique_ptr<tracing::Tracer> MakeTracer();
  void PublishState(bool ready);
  absl::Status WriteAddressFile() const;

  // In the order in which each needs those before it.
  const Options options_;
  const Clock& clock_;
  const AwakeClock awake_;  // judges workers, and how long to wait for them
  const std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  const chat::ModelChat chat_;
  const std::unique_ptr<telemetry::MetricsEndpoint> metrics_endpoint_;  // null: no /metrics
  const std::unique_ptr<security::SharedSecret> worker_secret_;
  const Access access_;
  const std::unique_ptr<RequestClasses> classes_;  // null: all tenants have that of the flags
  const std::optional<RerankPrompt> rerank_;       // nullopt: documents are not ranked
  RouterMetrics metrics_;
  const std::unique_ptr<tracing::Tracer> tracer_;  // null: nothing is traced
  const std::unique_ptr<Policy> policy_;
  PrefixIndex index_;
  Roster roster_;
  RoutePlanner planner_;
  GrpcWorkerNetwork network_;
  CallRegistry calls_;
  Admission admission_;
  RequestBytes request_bytes_;
  TenantLimits tenants_;
  UnreadAnswers unread_;
  ItemShares item_shares_;
  RetryBudget retry_budget_;
  ContinuationLine continuations_;
  WorkPool pool_;
  CallWatch call_watch_;
  DecisionLog decisions_;
  PromptHistory prompts_;
  TokenizedTexts tokenized_;
  RouterParts parts_;
  const std::shared_ptr<PrefixWarmer> warmer_;
  InferenceService inference_;
  AdminService admin_;
  OpenAiService openai_;
  const Cors cors_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<HttpServer> http_;  // null: no HTTP
  absl::Mutex health_mutex_;
  bool draining_ ABSL_GUARDED_BY(health_mutex_) = false;  // the watch may not set SERVING any more
  std::unique_ptr<WorkerWatch> watch_;
  SystemResolver resolver_;
  std::unique_ptr<Discovery> discovery_;
  bool drained_ = false;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_SERVER_H_
