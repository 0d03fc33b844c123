#include "prefill_worker/service.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"
#include "common/transfer/checksum.h"
#include "common/transfer/kv_sender.h"
#include "common/worker/token_sampling.h"

namespace baton::prefill_worker {
namespace {

absl::Status Mismatch(absl::string_view reason, absl::string_view what, uint64_t found,
                      uint64_t expected) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason,
                   absl::StrCat("the caller means ", what, " ", absl::Hex(found),
                                ", this prefill worker has ", absl::Hex(expected)));
}

absl::StatusOr<internal::v1::PrefillRequest> Parse(const grpc::ByteBuffer& bytes) {
  internal::v1::PrefillRequest request;
  grpc::ByteBuffer copy(bytes);  // a reference: deserializing empties its argument
  if (!grpc::SerializationTraits<internal::v1::PrefillRequest>::Deserialize(&copy, &request).ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "MALFORMED_REQUEST",
                     "the message is no PrefillRequest");
  }
  return request;
}

}  // namespace

absl::Status PrefillServer::Check(const internal::v1::PrefillRequest& request) const {
  if (const uint64_t sum = transfer::RequestChecksum(request); sum != request.checksum()) {
    return MakeError(absl::StatusCode::kDataLoss, "CHECKSUM",
                     absl::StrCat("PrefillRequest has checksum ", absl::Hex(request.checksum()),
                                  ", its content ", absl::Hex(sum)));
  }
  if (request.prefill_epoch() != identity_.epoch) {
    return Mismatch("STALE_EPOCH", "epoch", request.prefill_epoch(), identity_.epoch);
  }
  if (request.model_fingerprint() != engine_.config().fingerprint) {
    return Mismatch("MODEL_MISMATCH", "model", request.model_fingerprint(),
                    engine_.config().fingerprint);
  }
  const uint64_t layout = engine_.kv_layout().Fingerprint();
  if (request.kv_layout_fingerprint() != layout) {
    return Mismatch("KV_LAYOUT", "KV layout", request.kv_layout_fingerprint(), layout);
  }
  if (request.tokens_size() < 1 || request.tokens_size() > engine_.max_model_len()) {
    return InvalidField(
        "PROMPT_LENGTH", "tokens",
        absl::StrCat(request.tokens_size(), " given, expected 1 to ", engine_.max_model_len()));
  }
  const int blocks = (request.tokens_size() + engine_.kv_layout().block_tokens - 1) /
                     engine_.kv_layout().block_tokens;
  if (request.first_block() < 0 || request.first_block() > blocks) {
    return InvalidField("FIRST_BLOCK", "first_block",
                        absl::StrCat(request.first_block(), " given, expected 0 to ", blocks));
  }
  return worker::CheckTokenFields(request, engine_.config().vocab_size);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* PrefillServer::Prefill(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* bytes) {
  absl::StatusOr<internal::v1::PrefillRequest> request = Parse(*bytes);
  absl::Status status = request.ok() ? Check(*request) : request.status();
  const uint64_t job_id = next_job_id_.fetch_add(1);
  transfer::GrpcKvSender::Options options;
  options.transfer_id = status.ok() ? request->transfer_id() : 0;
  options.epoch = identity_.epoch;
  options.layout = engine_.kv_layout();
  options.pool = engine_.kv_pool();
  options.on_peer_gone = [this, job_id] { loop_.Cancel(job_id); };
  options.on_bytes_sent = [this](int64_t bytes) { metrics_.BytesSent(bytes); };
  auto sender = std::make_shared<transfer::GrpcKvSender>(std::move(options));
  auto* reactor = transfer::GrpcKvSender::Open(sender);
  if (!status.ok()) {
    BATON_LOG(Warning) << "prefill from " << context->peer() << " refused: " << status.ToString();
    metrics_.Refused(ErrorReason(status));
    sender->Finish(status);
    return reactor;
  }
  auto job = std::make_unique<PrefillJob>();
  job->id = job_id;
  job->request_id = request->request_id();
  job->tokens.assign(request->tokens().begin(), request->tokens().end());
  job->root = kv::RootPrefixKey(engine_.config().fingerprint, request->cache_salt(), "");
  job->first_block = request->first_block();
  job->sampling = worker::FromProto(request->sampling());
  job->prompt_tokens = worker::PromptTokens(*request);
  job->suppressed.assign(request->suppressed_token_ids().begin(),
                         request->suppressed_token_ids().end());
  if (request->has_prompt_logprobs()) job->prompt_logprobs = request->prompt_logprobs();
  job->sender = std::move(sender);
  loop_.Submit(std::move(job));
  return reactor;
}

}  // namespace baton::prefill_worker
