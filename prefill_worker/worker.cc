#include "prefill_worker/worker.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rpc/address_file.h"
#include "common/base/status_macros.h"
#include "common/worker/card.h"

namespace baton::prefill_worker {
namespace {

// For connections to be closed in good order.
constexpr absl::Duration kGoodbye = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillWorker>> PrefillWorker::Start(
    const worker::WorkerOptions& options) {
  std::unique_ptr<PrefillWorker> worker(new PrefillWorker());
  BATON_RETURN_IF_ERROR(worker->Initialize(options));
  return worker;
}

absl::Status PrefillWorker::Initialize(const worker::WorkerOptions& options) {
  engine::EngineOptions engine_options = worker::ToEngineOptions(options);
  // A test's device has no time for it.
  if (!options.make_backend) engine_options.warm_up = engine::EngineOptions::WarmUp::kPrompt;
  BATON_ASSIGN_OR_RETURN(engine_, engine::Engine::Load(engine_options));
  BATON_ASSIGN_OR_RETURN(metrics_endpoint_,
                         telemetry::MetricsEndpoint::Start(options.metrics_listen));
  internal::v1::WorkerCard card =
      worker::MakeCard(baton::v1::WORKER_ROLE_PREFILL, options, *engine_);
  metrics_ = std::make_unique<PrefillMetrics>(metrics_endpoint_->registry(), card.model());
  const Identity identity = {card.worker_id(), card.epoch()};
  watch_ = std::make_unique<worker::WatchService>(std::move(card), journal_, Clock::Real());
  LoopOptions loop;
  loop.enable_prefix_caching = options.enable_prefix_caching;
  loop.scheduler.block_tokens = engine_->kv_layout().block_tokens;
  loop.scheduler.max_num_batched_tokens = engine_->max_num_batched_tokens();
  loop.scheduler.max_num_seqs = engine_->max_num_seqs();
  loop.scheduler.max_queued_requests = options.max_queued_requests;
  loop.scheduler.max_queued_tokens = options.max_queued_tokens;
  loop_ = std::make_unique<PrefillLoop>(
      loop, *engine_, journal_, Clock::Real(), *metrics_,
      [this](const worker::WorkerLoad& load) { watch_->Publish(load); });
  service_ = std::make_unique<PrefillService>(identity, *engine_, *loop_, *metrics_);
  RpcServerOptions server;
  server.address = options.listen;
  BATON_ASSIGN_OR_RETURN(rpc_,
                         RpcServer::Start(server, {service_.get(), watch_.get()},
                                          {internal::v1::PrefillService::service_full_name(),
                                           internal::v1::WorkerService::service_full_name()}));
  rpc_->SetServing(true);
  BATON_LOG(Info) << "prefill worker " << identity.worker_id << " serves " << watch_->card().model()
                  << " on " << rpc_->address() << ", /metrics on " << metrics_endpoint_->address()
                  << "; " << engine_->Description() << "; " << engine_->kv_pool().block_count
                  << " KV blocks of " << engine_->kv_layout().ToString();
  if (options.address_file.empty()) return absl::OkStatus();
  return WriteAddressFile(options.address_file, {rpc_->address(), metrics_endpoint_->address()});
}

PrefillWorker::~PrefillWorker() { Stop(); }

void PrefillWorker::Drain(absl::Duration grace) {
  rpc_->SetServing(false);
  loop_->Drain();
  // Until the last stream has been sent the worker goes on to answer: that it is not serving, to
  // those who ask; that it drains, to new calls and to the routers that watch it.
  service_->open_calls().AwaitNone(grace);
  watch_->Stop();
  // All streams have ended, or their grace has. A peer that does not answer must not hold us up.
  rpc_->Stop(kGoodbye);
}

void PrefillWorker::Stop() {
  if (service_ != nullptr) service_->open_calls().Release();
  if (loop_ != nullptr) loop_->Stop();
  if (watch_ != nullptr) watch_->Stop();
  if (rpc_ != nullptr) rpc_->Stop(absl::ZeroDuration());
}

}  // namespace baton::prefill_worker
