#include "router/server.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"
#include "common/base/random_id.h"
#include "common/base/rpc/address_file.h"
#include "common/base/rpc/call_headers.h"
#include "common/base/status_macros.h"
#include "common/tracing/make_tracer.h"
#include "router/request/entrance.h"
#include "router/routing/priced_policy.h"

namespace baton::router {
namespace {

// How late a stalled stream, or a worker for a request that waits for one, may be noticed.
constexpr absl::Duration kCallTick = absl::Milliseconds(50);
// Errors of calls that a stop ends reach their clients within this.
constexpr absl::Duration kAnswersLeave = absl::Seconds(1);
// Bytes of an HTTP request beside its prompt.
constexpr uint64_t kMaxOtherBodyBytes = 1 << 20;

std::unique_ptr<Policy> MakePolicy(const Options& options) {
  if (options.routing_policy == "prefix_then_load") return std::make_unique<PrefixThenLoad>();
  if (options.routing_policy == "round_robin") return std::make_unique<RoundRobin>();
  PricedOptions priced;
  priced.max_local_prefill_tokens = options.max_local_prefill_tokens;
  priced.seed = RandomId64();
  return std::make_unique<PricedPolicy>(priced);
}

RouteOptions RouteOptionsFrom(const Options& options) {
  RouteOptions route;
  route.ttft_slo = absl::Milliseconds(options.ttft_slo_ms);
  route.kv_fetch = options.kv_fetch;
  route.kv_fetch_bytes_per_second = options.kv_fetch_bytes_per_second;
  route.kv_bytes_per_second = static_cast<double>(options.kv_bytes_per_second);
  route.demand.ttft_s = 1e-3 * static_cast<double>(options.scaling_ttft_ms);
  route.demand.inter_token_s = 1e-3 * options.scaling_inter_token_ms;
  route.demand.busy = options.scaling_prefill_busy;
  route.demand.fill = options.scaling_decode_fill;
  return route;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RouterServer>> RouterServer::Start(Options options,
                                                                  const Clock& clock) {
  BATON_RETURN_IF_ERROR(Validate(&options));
  Loaded loaded;
  BATON_ASSIGN_OR_RETURN(loaded, Load(options, clock));
  std::unique_ptr<RouterServer> server(
      new RouterServer(std::move(options), clock, std::move(loaded)));
  BATON_RETURN_IF_ERROR(server->Listen());
  return server;
}

absl::StatusOr<RouterServer::Loaded> RouterServer::Load(const Options& options,
                                                        const Clock& clock) {
  Loaded loaded;
  BATON_ASSIGN_OR_RETURN(loaded.tokenizer, tokenizer::Tokenizer::Load(options.model_dir));
  absl::StatusOr<chat::ModelChat> chat = chat::ModelChat::Load(options.model_dir);
  if (!chat.ok()) return chat.status();
  loaded.chat = *std::move(chat);
  if (!options.api_keys.empty()) {
    BATON_ASSIGN_OR_RETURN(loaded.api_keys, security::ApiKeys::Load(options.api_keys, clock));
  }
  if (!options.classes.empty()) {
    BATON_ASSIGN_OR_RETURN(loaded.classes,
                           RequestClasses::Load(options.classes, ClassOfFlags(options), clock));
  }
  if (!options.rerank_template.empty()) {
    BATON_ASSIGN_OR_RETURN(loaded.rerank,
                           RerankPrompt::Make(options.rerank_template, options.rerank_labels));
  }
  if (!options.worker_secret_file.empty()) {
    BATON_ASSIGN_OR_RETURN(loaded.worker_secret,
                           security::SharedSecret::Load(options.worker_secret_file, clock));
  }
  if (!options.metrics_listen.empty()) {
    BATON_ASSIGN_OR_RETURN(loaded.metrics_endpoint,
                           telemetry::MetricsEndpoint::Start(options.metrics_listen));
  }
  return loaded;
}

RouterServer::RouterServer(Options options, const Clock& clock, Loaded loaded)
    : options_(std::move(options)),
      clock_(clock),
      awake_(clock),
      tokenizer_(std::move(loaded.tokenizer)),
      chat_(*std::move(loaded.chat)),
      metrics_endpoint_(std::move(loaded.metrics_endpoint)),
      worker_secret_(std::move(loaded.worker_secret)),
      access_(std::move(loaded.api_keys), worker_secret_.get()),
      classes_(std::move(loaded.classes)),
      rerank_(std::move(loaded.rerank)),
      metrics_(metrics_endpoint_ ? &metrics_endpoint_->registry() : nullptr,
               options_.served_model_name),
      tracer_(MakeTracer()),
      policy_(MakePolicy(options_)),
      roster_(tokenizer_->fingerprint(), index_, awake_),
      planner_(roster_, index_, *policy_, awake_, RouteOptionsFrom(options_)),
      admission_({options_.max_inflight_requests, options_.max_inflight_prompt_tokens,
                  absl::Milliseconds(options_.retry_after_ms)},
                 awake_,
                 [this](const Admission::Inside& inside) {
                   metrics_.SetInflight(inside.requests, inside.prompt_tokens,
                                        inside.without_prompt);
                 }),
      request_bytes_(options_.max_inflight_request_bytes,
                     [this](int64_t bytes) { metrics_.SetRequestBytes(bytes); }),
      tenants_(clock_),
      unread_(
          options_.unread_bytes, [this](int64_t bytes) { metrics_.SetUnreadBytes(bytes); },
          [this] { metrics_.AnswerNotRead("memory"); }),
      retry_budget_({options_.retry_budget_percent / 100.0,
                     static_cast<double>(options_.retry_budget_reserve),
                     static_cast<double>(options_.retry_budget_capacity)}),
      continuations_([this](int waiting) { metrics_.SetContinuationsWaiting(waiting); }),
      pool_(options_.tokenizer_threads, options_.max_queued_prompts),
      call_watch_(kCallTick),
      decisions_(options_.explain_log_every, metrics_),
      prompts_(options_.prompt_history_bytes),
      tokenized_(
          *tokenizer_, options_.tokenized_text_bytes,
          [this](size_t known_bytes, size_t bytes) { metrics_.ChatTokenized(known_bytes, bytes); }),
      parts_{options_,       *tokenizer_,     clock_,
             awake_,         roster_,         planner_,
             metrics_,       admission_,      retry_budget_,
             continuations_, pool_,           call_watch_,
             unread_,        network_,        decisions_,
             access_,        tenants_,        chat_,
             calls_,         prompts_,        tracer_.get(),
             classes_.get(), &network_,       &item_shares_,
             &tokenized_,    &request_bytes_, rerank_ ? &*rerank_ : nullptr},
      warmer_(std::make_shared<PrefixWarmer>(parts_, options_.max_warm_prefixes)),
      inference_(parts_),
      admin_(parts_, *warmer_, [this](int worker) { return watch_->Stub(worker); }),
      openai_(parts_),
      cors_(options_.http_cors_origins),
      watch_(std::make_unique<WorkerWatch>(
          roster_, network_, awake_, [this](bool ready) { PublishState(ready); },
          MakeChannelSecurity(options_.worker_tls, security::HeadersOf(worker_secret_.get())))),
      discovery_(std::make_unique<Discovery>(Sources(), awake_, DiscoveryEvents())) {
  call_watch_.Add(warmer_);
  roster_.SetOnDeath([this](const Incarnation& dead) {
    metrics_.OrphanedByDeath(retry_budget_.OnDeath(dead, awake_.SinceStart()));
  });
  if (classes_ != nullptr) classes_->SetOnBadFile([this] { metrics_.ClassesFileBad(); });
  roster_.SetOnExpired([this](v1::WorkerRole role) { metrics_.WorkerExpired(role); });
}

std::unique_ptr<tracing::Tracer> RouterServer::MakeTracer() {
  tracing::ExportEvents events;
  if (const telemetry::TraceCounters* counters = metrics_.traces()) {
    events.exported = [counters](int spans) { counters->Exported(spans); };
    events.dropped = [counters](int spans, const char* reason) {
      counters->Dropped(spans, reason);
    };
  }
  return tracing::MakeTracer(options_.tracing, "baton-router", RandomIdText(), clock_,
                             std::move(events));
}

std::vector<std::unique_ptr<WorkerSource>> RouterServer::Sources() {
  std::vector<std::unique_ptr<WorkerSource>> sources;
  std::vector<WorkerAddress> listed;
  for (const std::string& address : options_.prefill_workers) {
    listed.push_back({v1::WORKER_ROLE_PREFILL, address});
  }
  for (const std::string& address : options_.decode_workers) {
    listed.push_back({v1::WORKER_ROLE_DECODE, address});
  }
  if (!listed.empty()) sources.push_back(std::make_unique<StaticWorkers>(std::move(listed)));
  if (!options_.workers_file.empty()) {
    sources.push_back(std::make_unique<WorkersFile>(options_.workers_file));
  }
  const DnsWorkers::Limits limits = {absl::Milliseconds(options_.dns_refresh_ms),
                                     absl::Milliseconds(options_.dns_answer_life_ms)};
  for (const auto& [role, name] : {std::pair(v1::WORKER_ROLE_PREFILL, options_.prefill_dns),
                                   std::pair(v1::WORKER_ROLE_DECODE, options_.decode_dns)}) {
    if (name.empty()) continue;
    sources.push_back(std::make_unique<DnsWorkers>(role, name, limits, resolver_));
  }
  return sources;
}

Discovery::Events RouterServer::DiscoveryEvents() {
  Discovery::Events events;
  events.on_workers = [this](const std::vector<WorkerAddress>& workers) {
    BATON_RETURN_IF_ERROR(roster_.SetWorkers(workers));
    watch_->Wake();
    return absl::OkStatus();
  };
  events.on_failure = [this](const WorkerSource& source) {
    metrics_.DiscoveryFailed(source.kind());
  };
  events.on_failing = [this](int sources) { metrics_.SetDiscoveryFailing(sources); };
  return events;
}

absl::Status RouterServer::Listen() {
  RpcServerOptions rpc_options;
  rpc_options.address = options_.listen;
  rpc_options.tls = options_.tls;
  rpc_options.unix_socket = options_.listen_socket;
  // Clients need not be as quick as workers: one that reads slowly may leave pings unanswered for
  // seconds.
  rpc_options.keepalive = {absl::Seconds(10), absl::Seconds(10)};
  rpc_options.write_stall_timeout = absl::Milliseconds(options_.write_stall_timeout_ms);
  rpc_options.clock = &clock_;
  rpc_options.on_stalled = [this] { metrics_.AnswerNotRead("stalled"); };
  rpc_options.may_reflect = [this](const grpc::ServerContextBase& context) {
    return access_
        .Authenticate(CallHeader(context, "authorization"),
                      CallHeader(context, security::kWorkerSecretHeader))
        .status();
  };
  BATON_ASSIGN_OR_RETURN(rpc_, RpcServer::Start(rpc_options, {&inference_, &admin_},
                                                {v1::InferenceService::service_full_name(),
                                                 v1::AdminService::service_full_name()}));
  BATON_RETURN_IF_ERROR(ListenForHttp());
  BATON_RETURN_IF_ERROR(discovery_->Start());
  // The watch starts only now: its thread reports to the health service of rpc_.
  watch_->Start();
  BATON_LOG(Info) << "router of \"" << options_.served_model_name << "\" listens on " << address();
  return WriteAddressFile();
}

absl::Status RouterServer::ListenForHttp() {
  if (options_.http_listen.empty()) return absl::OkStatus();
  HttpServerOptions http;
  http.address = options_.http_listen;
  http.tls = options_.tls;
  http.threads = options_.http_threads;
  http.max_connections = static_cast<size_t>(options_.max_http_connections);
  // A character of the prompt takes up to six bytes of JSON.
  http.max_body_bytes = 6 * static_cast<uint64_t>(options_.max_prompt_bytes) + kMaxOtherBodyBytes;
  http.write_stall_timeout = absl::Milliseconds(options_.write_stall_timeout_ms);
  http.clock = &clock_;
  http.request_bytes = &request_bytes_;
  http.metrics = &metrics_;
  http.route = OpenAiService::Route;
  if (!options_.http_cors_origins.empty()) {
    http.shared_headers = [this](const HttpRequest& head) { return cors_.HeadersFor(head); };
  }
  BATON_ASSIGN_OR_RETURN(http_,
                         HttpServer::Start(
                             http,
                             [this](HttpRequest request, std::shared_ptr<HttpResponder> responder) {
                               if (auto preflight = cors_.Preflight(request)) {
                                 responder->Respond(*std::move(preflight));
                                 return std::shared_ptr<HttpCall>();
                               }
                               return openai_.Handle(std::move(request), std::move(responder));
                             },
                             [this](int status, absl::string_view why, const HttpRequest& head) {
                               return openai_.Unread(status, why, head);
                             }));
  BATON_LOG(Info) << "OpenAI endpoints at " << (options_.tls.on() ? "https://" : "http://")
                  << http_address() << "/v1";
  return absl::OkStatus();
}

void RouterServer::Stop() {
  calls_.EndAll(RouterStopped());
  if (http_ != nullptr) http_->Stop(kAnswersLeave);
  rpc_->Stop(absl::ZeroDuration());
  if (tracer_ != nullptr) tracer_->Cut();
}

void RouterServer::PublishState(bool ready) {
  {
    absl::MutexLock lock(&health_mutex_);
    rpc_->SetServing(ready && !draining_);
  }
  metrics_.SetWorkers(roster_.List());
  const Demand demand = planner_.UpdateDemand(metrics_.refused_for_load());
  metrics_.SetScaling({demand.prefill_backlog_s, demand.decode_backlog_s, demand.kv_headroom,
                       demand.sequence_headroom, demand.predicted_ttft_s,
                       demand.predicted_inter_token_s, demand.prefill_workers,
                       demand.decode_workers});
}

absl::Status RouterServer::WriteAddressFile() const {
  if (options_.address_file.empty()) return absl::OkStatus();
  return baton::WriteAddressFile(options_.address_file,
                                 {address(), metrics_address(), http_address()});
}

RouterServer::~RouterServer() { Drain(absl::ZeroDuration()); }

void RouterServer::Drain(absl::Duration grace) {
  if (std::exchange(drained_, true)) return;
  const absl::Duration end = clock_.SinceStart() + grace;
  // Who is here now is enough for what still runs.
  discovery_->Stop();
  warmer_->Stop();
  if (rpc_ != nullptr) {
    {
      absl::MutexLock lock(&health_mutex_);
      draining_ = true;
      rpc_->SetServing(false);
    }
    openai_.SetDraining();
    if (http_ != nullptr) http_->StartDraining();
    // What still runs when the grace is over gets an error, for which there is a little more time.
    const bool runs = grace > absl::ZeroDuration() || calls_.EndAll(RouterStopped()) > 0;
    const absl::Duration last = runs ? kAnswersLeave : absl::ZeroDuration();
    absl::Notification over;
    std::thread end_calls = NamedThread("router-grace", [&] {
      if (!over.WaitForNotificationWithTimeout(grace)) calls_.EndAll(RouterStopped());
    });
    rpc_->Drain(grace + last, RouterDrains());
    if (http_ != nullptr) {
      http_->Stop(std::max(absl::ZeroDuration(), end + last - clock_.SinceStart()));
    }
    over.Notify();
    end_calls.join();
    rpc_->StopRefusing();
  }
  // Streams to workers, and places of admitted requests, may outlive the streams to clients by a
  // moment.
  admission_.AwaitEmpty();
  if (tracer_ != nullptr) {
    tracer_->Stop(std::max(absl::ZeroDuration(), end - clock_.SinceStart()));
  }
  // The watch stops only now: without it no worker is known to be ready, and what runs may still
  // need one.
  watch_->Stop();
  watch_.reset();
  pool_.Stop();
  call_watch_.Stop();
  discovery_.reset();
}

}  // namespace baton::router
