#include "decode_worker/worker.h"

#include <algorithm>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/security/tls_check.h"
#include "common/worker/socket_tokens.h"
#include "decode_worker/draft_engine.h"
#include "decode_worker/draft_model.h"

namespace baton::decode_worker {
namespace {

// This worker waits so long for the pools that are there when it starts.
constexpr absl::Duration kPoolsOpen = absl::Seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeWorker>> DecodeWorker::Start(
    const worker::WorkerOptions& options, const DecodeOptions& decode) {
  std::unique_ptr<DecodeWorker> worker(new DecodeWorker());
  BATON_RETURN_IF_ERROR(worker->Initialize(options, decode));
  return worker;
}

absl::Status DecodeWorker::Initialize(const worker::WorkerOptions& options,
                                      const DecodeOptions& decode) {
  BATON_RETURN_IF_ERROR(security::CheckTls(decode.worker_tls));
  engine::EngineOptions engine_options = worker::ToEngineOptions(options);
  // A batch full of decoding sequences must leave room for a block of an answer's prompt, and of a
  // job's.
  engine_options.max_num_batched_tokens = std::max(engine_options.max_num_batched_tokens,
                                                   options.max_num_seqs + 2 * options.block_size);
  // A test's device has no time for it.
  if (!options.make_backend) {
    engine_options.warm_up = engine::EngineOptions::WarmUp::kPromptAndDecode;
  }
  BATON_ASSIGN_OR_RETURN(draft_engine_, LoadDraftEngine(decode, engine_options));
  const bool mtp = decode.speculation.mode == SpeculationOptions::Mode::kMtp;
  engine_options.load_mtp_head = mtp;
  engine_options.mtp_kv_bytes = decode.draft_kv_bytes;
  engine_options.mtp_gpu_memory_utilization = decode.draft_gpu_memory_utilization;
  worker::WorkerOptions listed = options;
  listed.serves_prefill = decode.serve_prefill;
  BATON_RETURN_IF_ERROR(prefill::ListTiers(decode.tiers, &listed));
  BATON_RETURN_IF_ERROR(Load(baton::v1::WORKER_ROLE_DECODE, listed, engine_options));
  if (draft_engine_ != nullptr) {
    BATON_LOG(Info) << "drafts with " << decode.speculation.draft_model << ": "
                    << draft_engine_->Description();
  }
  peers_ = std::make_unique<transfer::PeerChannels>(
      MakeChannelSecurity(decode.worker_tls, security::HeadersOf(secret())));
  metrics_ = std::make_unique<DecodeMetrics>(registry(), card().model(), cache_config());
  StartTracing(options.tracing, metrics_->traces());
  LoopOptions loop;
  loop.worker_id = card().worker_id();
  loop.scheduler.block_tokens = engine().kv_layout().block_tokens;
  loop.scheduler.max_num_seqs = engine().max_num_seqs();
  loop.scheduler.max_num_batched_tokens = engine().max_num_batched_tokens();
  loop.scheduler.max_queued_requests = options.max_queued_requests;
  loop.scheduler.max_queued_tokens = options.max_queued_tokens;
  loop.scheduler.local_prefill_max_tokens = decode.local_prefill_max_tokens;
  loop.scheduler.long_context_tokens = decode.long_context_tokens;
  loop.scheduler.long_context_share = decode.long_context_share;
  loop.scheduler.max_tenant_requests = decode.max_tenant_requests;
  loop.scheduler.max_tenant_tokens = decode.max_tenant_tokens;
  loop.enable_prefix_caching = options.enable_prefix_caching;
  loop.max_retained_share = options.max_retained_share;
  loop.max_snapshot_share = options.max_snapshot_share;
  loop.host_kv_bytes = decode.host_kv_bytes;
  loop.speculation = decode.speculation;
  loop.draft_engine = mtp ? engine().mtp_head() : draft_engine_.get();
  if (options.kv_transport == "nccl") {
    auto devices = engine().MakeDeviceLinks();
    if (!devices.ok()) return Annotate(devices.status(), "--kv-transport nccl");
    device_links_ = std::make_unique<transfer::DeviceLinkClient>(
        *std::move(devices), card().worker_id(), engine().kv_layout(),
        [this](const std::string& address) { return peers_->Get(address); }, awake());
  }
  BATON_RETURN_IF_ERROR(MakeSharedPools(options));
  loop.shared_pools = shared_pools_.get();
  loop.device_links = device_links_.get();
  loop.kv_holder.enabled = options.kv_fetch || decode.kv_write_back;
  loop.jobs.scheduler.block_tokens = loop.scheduler.block_tokens;
  loop.jobs.scheduler.max_num_batched_tokens = loop.scheduler.max_num_batched_tokens;
  loop.jobs.scheduler.max_num_seqs = loop.scheduler.max_num_seqs;
  loop.jobs.scheduler.max_queued_requests = options.max_queued_requests;
  loop.jobs.scheduler.max_queued_tokens = options.max_queued_tokens;
  if (options.kv_fetch) {
    loop.jobs.kv_fetch.worker_id = card().worker_id();
    loop.jobs.kv_fetch.awake = &awake();
    loop.jobs.kv_fetch.start = prefill::FetchOver(*peers_);
  }
  BATON_RETURN_IF_ERROR(prefill::OpenTiers(decode.tiers, options, awake(), &loop.jobs.kv_tiers));
  loop.superseded_first = loop.jobs.kv_tiers.stores.empty();
  loop.scheduler.tier_segment_blocks = loop.jobs.scheduler.tier_segment_blocks =
      loop.jobs.kv_tiers.segment_blocks(loop.scheduler.block_tokens);
  loop.jobs.kv_tiers.max_listed = card().kv_tier_max_segments();
  if (decode.kv_write_back) {
    loop.kv_offers.start = [this](const std::string& address,
                                  const internal::v1::OfferKvRequest& request, absl::Time deadline,
                                  transfer::OfferCall::OnAnswer on_answer) {
      return transfer::OfferCall::Start(peers_->Get(address), request, deadline,
                                        std::move(on_answer));
    };
  }
  structured_output_ = MakeStructuredOutput(decode.grammar_program, options.model_dir, engine());
  loop.structured_output = structured_output_.get();
  loop_ = std::make_unique<DecodeLoop>(
      loop, engine(), journal(), Clock::Real(), *metrics_,
      [this](const PrefillPeer& peer, const internal::v1::PrefillRequest& request,
             absl::Time deadline, transfer::TransferPlan plan, transfer::PrefillEvents events) {
        return transfer::PrefillCall::Start(peers_->Get(peer.address), request, deadline,
                                            std::move(plan), std::move(events));
      },
      [this](const worker::WorkerLoad& load) { Publish(load); });
  service_ =
      std::make_unique<DecodeService>(card().epoch(), engine(), *loop_, *metrics_, open_calls(),
                                      secret(), tracer(), structured_output_.get());
  calls_.reset(new prefill::CallContext{card().epoch(), engine(), "decode", loop_->jobs(),
                                        metrics_->jobs(), open_calls(), secret(), tracer()});
  std::function<void(worker::KvOffer, worker::AnswerOffer)> offer;
  if (options.kv_fetch) {
    offer = [this](worker::KvOffer offered, worker::AnswerOffer answer) {
      loop_->jobs().Offer(std::move(offered), std::move(answer));
    };
  }
  kv_service_ = std::make_unique<worker::KvService>(worker::KvService::Context{
      card().epoch(), engine(), loop_->kv_holder(), metrics_->kv_exchange(), open_calls(), secret(),
      calls_->links, std::move(offer)});
  std::vector<grpc::Service*> services = {service_.get(), kv_service_.get()};
  if (decode.serve_prefill) {
    prefill_service_ = std::make_unique<prefill::PrefillService>(*calls_);
    services.push_back(prefill_service_.get());
  }
  // Before a router chooses this worker: its first request opens nothing. A pool whose opening
  // hangs holds up nothing but itself: KV comes over gRPC meanwhile.
  if (shared_pools_ != nullptr && !shared_pools_->WaitUntilTried(kPoolsOpen)) {
    BATON_LOG(Warning) << "a prefill worker's KV pool is not open after "
                       << absl::FormatDuration(kPoolsOpen) << ": this worker starts without it";
  }
  BATON_RETURN_IF_ERROR(Serve(options, services, internal::v1::DecodeService::service_full_name()));
  internal::v1::WorkerRef self;
  self.set_address(address());
  self.set_worker_id(card().worker_id());
  self.set_epoch(card().epoch());
  loop_->OfferFrom(std::move(self));
  return absl::OkStatus();
}

absl::Status DecodeWorker::MakeSharedPools(const worker::WorkerOptions& options) {
  const std::string& transport = options.kv_transport;
  if (transport == "grpc" || transport == "nccl") return absl::OkStatus();
  backend::KvCopier* const copier = engine().kv_pool().copier;
  const bool opens = copier != nullptr && copier->shares() && transport != "shm";
  if (transport == "ipc" && !opens) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "SHARED_MEMORY",
                     "--kv-transport ipc: the KV pool is not in the memory of a GPU");
  }
  shared_pools_ = std::make_unique<transfer::SharedPools>(engine().kv_layout(), awake(),
                                                          /*host_pools=*/transport != "ipc",
                                                          opens ? copier : nullptr,
                                                          worker::SocketTokens(options, secret()));
  return absl::OkStatus();
}

}  // namespace baton::decode_worker
