#include "decode_worker/worker.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/rpc/address_file.h"
#include "common/base/status_macros.h"
#include "common/worker/card.h"

namespace baton::decode_worker {

absl::StatusOr<std::unique_ptr<DecodeWorker>> DecodeWorker::Start(
    const worker::WorkerOptions& options, const DecodeOptions& decode) {
  std::unique_ptr<DecodeWorker> worker(new DecodeWorker());
  BATON_RETURN_IF_ERROR(worker->Initialize(options, decode));
  return worker;
}

absl::Status DecodeWorker::Initialize(const worker::WorkerOptions& options,
                                      const DecodeOptions& decode) {
  engine::EngineOptions engine_options = worker::ToEngineOptions(options);
  // A batch full of decoding sequences must leave room for a block of some prompt.
  engine_options.max_num_batched_tokens =
      std::max(engine_options.max_num_batched_tokens, options.max_num_seqs + options.block_size);
  // A test's device has no time for it.
  if (!options.make_backend) {
    engine_options.warm_up = engine::EngineOptions::WarmUp::kPromptAndDecode;
  }
  BATON_ASSIGN_OR_RETURN(engine_, engine::Engine::Load(engine_options));
  BATON_ASSIGN_OR_RETURN(metrics_endpoint_,
                         telemetry::MetricsEndpoint::Start(options.metrics_listen));
  internal::v1::WorkerCard card =
      worker::MakeCard(baton::v1::WORKER_ROLE_DECODE, options, *engine_);
  metrics_ = std::make_unique<DecodeMetrics>(metrics_endpoint_->registry(), card.model());
  const std::string worker_id = card.worker_id();
  const uint64_t epoch = card.epoch();
  watch_ = std::make_unique<worker::WatchService>(std::move(card), journal_, Clock::Real());
  LoopOptions loop;
  loop.worker_id = worker_id;
  loop.scheduler.block_tokens = engine_->kv_layout().block_tokens;
  loop.scheduler.max_num_seqs = engine_->max_num_seqs();
  loop.scheduler.max_num_batched_tokens = engine_->max_num_batched_tokens();
  loop.scheduler.max_queued_requests = options.max_queued_requests;
  loop.scheduler.max_queued_tokens = options.max_queued_tokens;
  loop.scheduler.local_prefill_max_tokens = decode.local_prefill_max_tokens;
  loop.scheduler.long_context_tokens = decode.long_context_tokens;
  loop.scheduler.long_context_share = decode.long_context_share;
  loop.scheduler.max_tenant_requests = decode.max_tenant_requests;
  loop.scheduler.max_tenant_tokens = decode.max_tenant_tokens;
  loop.enable_prefix_caching = options.enable_prefix_caching;
  loop.host_kv_bytes = decode.host_kv_bytes;
  loop_ = std::make_unique<DecodeLoop>(
      loop, *engine_, journal_, Clock::Real(), *metrics_,
      [this](const PrefillPeer& peer, const internal::v1::PrefillRequest& request,
             absl::Time deadline, transfer::TransferPlan plan, transfer::PrefillEvents events) {
        return transfer::PrefillCall::Start(peers_.Get(peer.address), request, deadline,
                                            std::move(plan), std::move(events));
      },
      [this](const worker::WorkerLoad& load) { watch_->Publish(load); });
  service_ = std::make_unique<DecodeService>(epoch, *engine_, *loop_, *metrics_);
  RpcServerOptions server;
  server.address = options.listen;
  BATON_ASSIGN_OR_RETURN(rpc_,
                         RpcServer::Start(server, {service_.get(), watch_.get()},
                                          {internal::v1::DecodeService::service_full_name(),
                                           internal::v1::WorkerService::service_full_name()}));
  rpc_->SetServing(true);
  BATON_LOG(Info) << "decode worker " << worker_id << " serves " << watch_->card().model() << " on "
                  << rpc_->address() << ", /metrics on " << metrics_endpoint_->address() << "; "
                  << engine_->Description() << "; " << engine_->kv_pool().block_count
                  << " KV blocks of " << engine_->kv_layout().ToString();
  if (options.address_file.empty()) return absl::OkStatus();
  return WriteAddressFile(options.address_file, {rpc_->address(), metrics_endpoint_->address()});
}

DecodeWorker::~DecodeWorker() { Stop(); }

void DecodeWorker::Drain(absl::Duration grace) {
  rpc_->SetServing(false);
  loop_->Drain();
  watch_->Stop();
  rpc_->Stop(grace);
}

void DecodeWorker::Stop() {
  if (loop_ != nullptr) loop_->Stop();
  if (watch_ != nullptr) watch_->Stop();
  if (rpc_ != nullptr) rpc_->Stop(absl::ZeroDuration());
}

}  // namespace baton::decode_worker
