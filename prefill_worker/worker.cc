#include "prefill_worker/worker.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/security/tls_check.h"
#include "common/transfer/host_sockets.h"
#include "common/worker/socket_tokens.h"

namespace baton::prefill_worker {
namespace {

// This worker waits so long for the decode workers that are there to open its pool. A later one
// asks by itself.
constexpr absl::Duration kReadersOpen = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillWorker>> PrefillWorker::Start(
    const worker::WorkerOptions& options, const PrefillOptions& flags) {
  std::unique_ptr<PrefillWorker> worker(new PrefillWorker());
  BATON_RETURN_IF_ERROR(worker->Initialize(options, flags));
  return worker;
}

absl::Status PrefillWorker::Initialize(const worker::WorkerOptions& options,
                                       const PrefillOptions& flags) {
  BATON_RETURN_IF_ERROR(security::CheckTls(flags.worker_tls));
  worker::WorkerOptions with_tiers = options;
  BATON_RETURN_IF_ERROR(prefill::ListTiers(flags.tiers, &with_tiers));
  engine::EngineOptions engine_options = worker::ToEngineOptions(options);
  engine_options.share_kv_pool = options.kv_transport == "auto" || options.kv_transport == "shm";
  // A test's device has no time for it.
  if (!options.make_backend) engine_options.warm_up = engine::EngineOptions::WarmUp::kPrompt;
  BATON_RETURN_IF_ERROR(Load(baton::v1::WORKER_ROLE_PREFILL, with_tiers, engine_options));
  metrics_ = std::make_unique<prefill::PrefillMetrics>(registry(), card().model(), cache_config());
  StartTracing(options.tracing, metrics_->traces());
  prefill::LoopOptions loop;
  loop.enable_prefix_caching = options.enable_prefix_caching;
  loop.max_retained_share = options.max_retained_share;
  loop.max_snapshot_share = options.max_snapshot_share;
  loop.scheduler.block_tokens = engine().kv_layout().block_tokens;
  loop.scheduler.max_num_batched_tokens = engine().max_num_batched_tokens();
  loop.scheduler.max_num_seqs = engine().max_num_seqs();
  loop.scheduler.max_queued_requests = options.max_queued_requests;
  loop.scheduler.max_queued_tokens = options.max_queued_tokens;
  loop.kv_holder.enabled = options.kv_fetch;
  if (options.kv_fetch) {
    peers_ = std::make_unique<transfer::PeerChannels>(
        MakeChannelSecurity(flags.worker_tls, security::HeadersOf(secret())));
    loop.kv_fetch.worker_id = card().worker_id();
    loop.kv_fetch.awake = &awake();
    loop.kv_fetch.start = prefill::FetchOver(*peers_);
  }
  BATON_RETURN_IF_ERROR(prefill::OpenTiers(flags.tiers, options, awake(), &loop.kv_tiers));
  // Tiers get a state with its second use, perhaps after it has been superseded.
  loop.superseded_first = loop.kv_tiers.stores.empty();
  loop.scheduler.tier_segment_blocks = loop.kv_tiers.segment_blocks(loop.scheduler.block_tokens);
  loop.kv_tiers.max_listed = card().kv_tier_max_segments();
  loop_ = std::make_unique<prefill::PrefillLoop>(
      loop, engine(), journal(), Clock::Real(), *metrics_,
      [this](const worker::WorkerLoad& load) { Publish(load); });
  BATON_RETURN_IF_ERROR(SharePool(options));
  BATON_RETURN_IF_ERROR(LinkDevice(options));
  calls_.reset(new prefill::CallContext{
      card().epoch(), engine(), "prefill", loop_->jobs(), metrics_->jobs(), open_calls(), secret(),
      tracer(), shared_pool_.get(), options.kv_shm_checksums, device_links_.get()});
  service_ = std::make_unique<prefill::PrefillService>(*calls_);
  first_token_service_ = std::make_unique<FirstTokenService>(*calls_);
  std::function<void(worker::KvOffer, worker::AnswerOffer)> offer;
  if (options.kv_fetch) {
    offer = [this](worker::KvOffer offered, worker::AnswerOffer answer) {
      loop_->jobs().Offer(std::move(offered), std::move(answer));
    };
  }
  kv_service_ = std::make_unique<worker::KvService>(worker::KvService::Context{
      card().epoch(), engine(), loop_->kv_holder(), metrics_->kv_exchange(), open_calls(), secret(),
      calls_->links, std::move(offer)});
  std::vector<grpc::Service*> services = {service_.get(), first_token_service_.get(),
                                          kv_service_.get()};
  if (device_links_ != nullptr) {
    device_link_service_ = std::make_unique<prefill::DeviceLinkService>(*calls_);
    services.push_back(device_link_service_.get());
  }
  // Before a router chooses this worker: its first request opens nothing.
  if (shared_pool_ != nullptr) {
    transfer::CallReaders(engine().kv_layout().Fingerprint(), kReadersOpen);
  }
  return Serve(options, services, internal::v1::PrefillService::service_full_name());
}

absl::Status PrefillWorker::SharePool(const worker::WorkerOptions& options) {
  const std::string& transport = options.kv_transport;
  if (transport == "grpc" || transport == "nccl") return absl::OkStatus();
  const backend::KvPool& pool = engine().kv_pool();
  const bool in_host = pool.shared_file >= 0 && transport != "ipc";
  const bool in_device = pool.copier != nullptr && pool.copier->shares() && transport != "shm";
  absl::Status status = absl::OkStatus();
  if (in_host || in_device) {
    transfer::SharedPoolServer::Options named;
    if (const auto token_of = worker::SocketTokens(options, secret()); token_of != nullptr) {
      named.socket =
          transfer::MakePoolName({!in_host, engine().kv_layout().Fingerprint(), card().epoch()});
      named.token = token_of(named.socket);
    }
    auto server = transfer::SharedPoolServer::Start(pool, engine().kv_layout(), awake(), named);
    if (server.ok()) {
      shared_pool_ = *std::move(server);
      BATON_LOG(Info) << "decode workers of this host may read the KV pool"
                      << (in_host ? "" : " from their GPUs");
      return absl::OkStatus();
    }
    status = server.status();
  } else {
    status =
        MakeError(absl::StatusCode::kFailedPrecondition, "SHARED_MEMORY",
                  transport == "ipc"
                      ? "the KV pool is not in the memory of a GPU"
                      : "the KV pool is in a device's memory, which other processes cannot map");
  }
  if (transport != "auto") return Annotate(status, "--kv-transport " + transport);
  BATON_LOG(Info) << "KV is sent over gRPC: " << status.message();
  return absl::OkStatus();
}

absl::Status PrefillWorker::LinkDevice(const worker::WorkerOptions& options) {
  if (options.kv_transport != "nccl") return absl::OkStatus();
  auto devices = engine().MakeDeviceLinks();
  if (!devices.ok()) return Annotate(devices.status(), "--kv-transport nccl");
  device_links_ = std::make_unique<transfer::DeviceLinkServer>(
      *std::move(devices),
      transfer::DeviceLinkSender::Identity{card().epoch(), engine().kv_layout()}, awake());
  BATON_LOG(Info) << "decode workers may link their devices with this one's";
  return absl::OkStatus();
}

}  // namespace baton::prefill_worker
