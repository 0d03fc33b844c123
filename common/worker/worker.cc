#include "common/worker/worker.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rpc/address_file.h"
#include "common/base/status_macros.h"
#include "common/tracing/make_tracer.h"
#include "common/worker/call_gate.h"
#include "common/worker/card.h"

namespace baton::worker {
namespace {

// After the last call has ended: time for connections to close in order.
constexpr absl::Duration kConnectionGrace = absl::Seconds(1);

}  // namespace

absl::Status Worker::Load(baton::v1::WorkerRole role, const WorkerOptions& options,
                          const engine::EngineOptions& engine_options) {
  if (!options.worker_secret_file.empty()) {
    BATON_ASSIGN_OR_RETURN(secret_,
                           security::SharedSecret::Load(options.worker_secret_file, Clock::Real()));
  }
  BATON_ASSIGN_OR_RETURN(engine_, engine::Engine::Load(engine_options));
  BATON_ASSIGN_OR_RETURN(metrics_endpoint_,
                         telemetry::MetricsEndpoint::Start(options.metrics_listen));
  watch_ = std::make_unique<WatchService>(MakeCard(role, options, *engine_), journal_,
                                          Clock::Real(), secret_.get());
  return absl::OkStatus();
}

void Worker::StartTracing(tracing::TracingOptions options,
                          const telemetry::TraceCounters& counters) {
  if (options.endpoint.empty()) return;
  const bool prefill = card().role() == baton::v1::WORKER_ROLE_PREFILL;
  options.resource.emplace_back("baton.worker.id", card().worker_id());
  tracer_ = tracing::MakeTracer(
      options, prefill ? "baton-prefill-worker" : "baton-decode-worker", card().worker_id(),
      Clock::Real(),
      {[counters](int spans) { counters.Exported(spans); },
       [counters](int spans, const char* reason) { counters.Dropped(spans, reason); }});
}

absl::Status Worker::Serve(const WorkerOptions& options, std::vector<grpc::Service*> services,
                           const std::string& service_name) {
  watch_->SetControls({[this](bool draining, std::function<void()> applied) {
                         return SetDraining(draining, std::move(applied));
                       },
                       [this](std::function<void(int)> done) { FlushCache(std::move(done)); },
                       [this] { return open_calls_->none(); }});
  RpcServerOptions server;
  server.address = options.listen;
  server.tls = options.tls;
  if (secret_ != nullptr) {
    server.may_reflect = [this](const grpc::ServerContextBase& context) {
      return CheckCall(secret_.get(), context);
    };
  }
  services.push_back(watch_.get());
  BATON_ASSIGN_OR_RETURN(
      rpc_, RpcServer::Start(server, services,
                             {service_name, internal::v1::WorkerService::service_full_name()}));
  if (options.ready_routers > 0 || !options.ready_routers_dns.empty()) {
    router_count_.emplace(options.ready_routers, options.ready_routers_dns, resolver_,
                          Clock::Real());
    watch_->OnAccepted([this] { return router_count_->Get(); }, [this] { ReportReady(); });
  } else {
    ReportReady();
  }
  const bool prefill = card().role() == baton::v1::WORKER_ROLE_PREFILL;
  BATON_LOG(Info) << (prefill ? "prefill" : "decode") << " worker " << card().worker_id()
                  << " serves " << card().model() << " on " << address() << ", /metrics on "
                  << metrics_address() << "; " << engine_->Description() << "; "
                  << engine_->kv_pool().block_count / engine_->kv_pool().tables << " KV blocks of "
                  << engine_->kv_layout().ToString();
  if (options.address_file.empty()) return absl::OkStatus();
  return WriteAddressFile(options.address_file, {address(), metrics_address()});
}

CacheConfig Worker::cache_config() const {
  const kv::KvLayout& layout = engine_->kv_layout();
  return {layout.block_tokens, engine_->kv_pool().block_count,
          std::string(kv::KvDtypeName(layout.dtype))};
}

void Worker::ReportReady() {
  absl::MutexLock lock(&drain_mutex_);
  if (!shutting_down_) rpc_->SetServing(true);
}

void Worker::Drain(absl::Duration grace) {
  const absl::Duration end = Clock::Real().SinceStart() + grace;
  {
    absl::MutexLock lock(&drain_mutex_);
    shutting_down_ = true;
    rpc_->SetServing(false);
    SetLoopDraining(true, [] {});
  }
  open_calls_->AwaitNone(grace);
  watch_->Stop();
  StopStreams();
  // A peer that does not answer must not hold up the end.
  rpc_->Stop(kConnectionGrace);
  if (tracer_ != nullptr) {
    tracer_->Stop(std::max(absl::ZeroDuration(), end - Clock::Real().SinceStart()));
  }
}

absl::Status Worker::SetDraining(bool draining, std::function<void()> applied) {
  absl::MutexLock lock(&drain_mutex_);
  if (shutting_down_) return ShuttingDown();
  BATON_LOG(Info) << (draining ? "an operator drains this worker" : "the drain is over");
  SetLoopDraining(draining, std::move(applied));
  return absl::OkStatus();
}

void Worker::Stop() {
  open_calls_->Release();
  StopLoop();
  if (watch_ != nullptr) watch_->Stop();
  StopStreams();
  if (rpc_ != nullptr) rpc_->Stop(absl::ZeroDuration());
  if (tracer_ != nullptr) tracer_->Cut();
}

void Worker::Shutdown() {
  Stop();
  rpc_.reset();
}

}  // namespace baton::worker
