#include "common/worker/kv_service.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/request_limits.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"
#include "common/transfer/kv_sender.h"
#include "common/worker/call_checks.h"
#include "common/worker/call_gate.h"
#include "common/worker/kv_hint.h"
#include "common/worker/raw_request.h"

namespace baton::worker {
namespace {

// What both requests have. `epoch`: the one that the caller means.
template <class Request>
absl::Status CheckPrefix(const Request& request, uint64_t epoch, uint64_t own_epoch,
                         const engine::Engine& engine) {
  BATON_RETURN_IF_ERROR(CheckKvCall(request, {epoch, own_epoch}, engine));
  const int block_tokens = engine.kv_layout().block_tokens;
  if (request.tokens_size() < 1 || request.tokens_size() > engine.max_model_len() ||
      request.tokens_size() % block_tokens != 0) {
    return InvalidField("PROMPT_LENGTH", "tokens",
                        absl::StrCat(request.tokens_size(), " given, expected whole blocks of ",
                                     block_tokens, " and at most ", engine.max_model_len()));
  }
  if (request.cache_salt().size() > kMaxCacheSaltBytes) {
    return OutOfRange("cache_salt", absl::StrCat(request.cache_salt().size(), " bytes"),
                      absl::StrCat("at most ", kMaxCacheSaltBytes, " expected"));
  }
  return CheckTokenIds("tokens", request.tokens(), engine.config().vocab_size);
}

}  // namespace

absl::Status CheckRequest(const internal::v1::FetchKvRequest& request, uint64_t epoch,
                          const engine::Engine& engine, absl::Time now, absl::Time deadline) {
  BATON_RETURN_IF_ERROR(CheckPrefix(request, request.holder_epoch(), epoch, engine));
  const int blocks = request.tokens_size() / engine.kv_layout().block_tokens;
  if (request.first_block() < 0 || request.first_block() >= blocks) {
    return InvalidField("FIRST_BLOCK", "first_block",
                        absl::StrCat(request.first_block(), " given, expected 0 to ", blocks - 1));
  }
  if (deadline - now > KvHolder::kMostTime) {
    return InvalidField(
        "DEADLINE", "deadline",
        absl::StrCat("a fetch has to end within ", absl::FormatDuration(KvHolder::kMostTime),
                     ": it pins blocks until then"));
  }
  return absl::OkStatus();
}

std::string ReachableAddress(const std::string& address, const std::string& peer) {
  absl::string_view port = address;
  if (!absl::ConsumePrefix(&port, "0.0.0.0:") && !absl::ConsumePrefix(&port, "[::]:")) {
    return address;
  }
  // ipv4:10.0.0.1:4711 or ipv6:%5B::1%5D:4711
  const size_t scheme = peer.find(':');
  const size_t last = peer.rfind(':');
  if (scheme == std::string::npos || scheme == last || !absl::StartsWith(peer, "ipv")) {
    return address;
  }
  const std::string host =
      absl::StrReplaceAll(peer.substr(scheme + 1, last - scheme - 1), {{"%5B", "["}, {"%5D", "]"}});
  return absl::StrCat(host, ":", port);
}

absl::Status CheckRequest(const internal::v1::OfferKvRequest& request, uint64_t epoch,
                          const engine::Engine& engine) {
  BATON_RETURN_IF_ERROR(CheckPrefix(request, request.receiver_epoch(), epoch, engine));
  return CheckWorkerRef("holder", request.holder());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* KvService::FetchKv(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* bytes) {
  const absl::Status allowed = CheckCall(context_.secret, *context);
  absl::Status status = allowed;
  std::shared_ptr<void> place;
  internal::v1::FetchKvRequest request;
  if (status.ok()) {
    absl::StatusOr<std::shared_ptr<void>> entered = context_.holder.Enter();
    status = entered.status();
    if (entered.ok()) place = *std::move(entered);
  }
  const absl::Time deadline = absl::FromChrono(context->deadline());
  if (status.ok()) {
    absl::StatusOr<internal::v1::FetchKvRequest> parsed =
        ParseRequest<internal::v1::FetchKvRequest>(*bytes);
    status = parsed.ok()
                 ? CheckRequest(*parsed, context_.epoch, context_.engine, absl::Now(), deadline)
                 : parsed.status();
    if (!status.ok()) context_.metrics.Served(FetchResult::kRefused);
    if (parsed.ok()) request = *std::move(parsed);
  }
  transfer::GrpcKvSender::Options options;
  options.transfer_id = request.transfer_id();
  options.epoch = context_.epoch;
  options.layout = context_.engine.kv_layout();
  options.pool = context_.engine.kv_pool();
  // The sender keeps the tokens; what the caller no longer wants is dropped without the loop.
  options.on_peer_gone = [place, open = OpenCalls::Count(context_.open_calls)] {};
  options.on_bytes_sent = [this](int64_t sent, transfer::Plane) {
    context_.metrics.BytesSent(sent);
  };
  options.layer_runs = request.takes_layer_runs();
  options.schedule = context_.links;
  options.link = context->peer();
  options.deadline = deadline;
  auto sender = std::make_shared<transfer::GrpcKvSender>(std::move(options));
  auto* reactor = transfer::GrpcKvSender::Open(sender);
  if (!status.ok()) {
    if (allowed.ok() && !absl::IsCancelled(status)) {  // strangers must not fill the log
      BATON_LOG(Info) << "fetch from " << context->peer() << " refused: " << status;
    }
    sender->Finish(status);
    return reactor;
  }
  KvFetch fetch;
  fetch.root = kv::RootPrefixKey(context_.engine.config().fingerprint, request.cache_salt(), "");
  fetch.tokens.assign(request.tokens().begin(), request.tokens().end());
  fetch.first_block = request.first_block();
  fetch.sender = std::move(sender);
  context_.holder.Submit(std::move(fetch));
  return reactor;
}

grpc::ServerUnaryReactor* KvService::OfferKv(grpc::CallbackServerContext* context,
                                             const internal::v1::OfferKvRequest* request,
                                             internal::v1::OfferKvResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status allowed = CheckCall(context_.secret, *context);
  absl::Status status = allowed;
  if (status.ok() && context_.offer == nullptr) {
    status = MakeError(absl::StatusCode::kFailedPrecondition, "KV_FETCH_OFF",
                       "this worker takes no cached KV (--kv-fetch, of a prefill worker)");
  }
  if (status.ok()) status = CheckRequest(*request, context_.epoch, context_.engine);
  if (!status.ok()) {
    if (allowed.ok()) context_.metrics.Offered(OfferResult::kRefused);
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  KvOffer offer;
  offer.request_id = request->request_id();
  offer.holder = request->holder();
  offer.holder.set_address(ReachableAddress(request->holder().address(), context->peer()));
  offer.cache_salt = request->cache_salt();
  offer.root = kv::RootPrefixKey(context_.engine.config().fingerprint, request->cache_salt(), "");
  offer.tokens.assign(request->tokens().begin(), request->tokens().end());
  // gRPC keeps reactor and response until the call is finished.
  context_.offer(std::move(offer),
                 [reactor, response, open = OpenCalls::Count(context_.open_calls)](
                     absl::StatusOr<internal::v1::OfferKvResponse::Result> result) {
                   if (result.ok()) response->set_result(*result);
                   reactor->Finish(ToGrpcStatus(result.status()));
                 });
  return reactor;
}

}  // namespace baton::worker
