#include "decode_worker/service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/worker/token_sampling.h"
#include "decode_worker/beam_search.h"

namespace baton::decode_worker {
namespace {

Priority ToPriority(v1::Priority priority) {
  return priority == v1::PRIORITY_LOW    ? Priority::kLow
         : priority == v1::PRIORITY_HIGH ? Priority::kHigh
                                         : Priority::kNormal;
}

}  // namespace

absl::Status DecodeServer::Check(const internal::v1::DecodeRequest& request) const {
  // A router that is behind: nothing is wrong with the request, so it may go elsewhere.
  if (request.decode_epoch() != epoch_) {
    return MakeError(absl::StatusCode::kUnavailable, "STALE_EPOCH",
                     absl::StrCat("the caller means epoch ", absl::Hex(request.decode_epoch()),
                                  ", this decode worker has ", absl::Hex(epoch_)));
  }
  if (request.model_fingerprint() != engine_.config().fingerprint) {
    return MakeError(
        absl::StatusCode::kUnavailable, "MODEL_MISMATCH",
        absl::StrCat("the caller means model ", absl::Hex(request.model_fingerprint()),
                     ", this decode worker has ", absl::Hex(engine_.config().fingerprint)));
  }
  const int limit = engine_.max_model_len();
  if (request.tokens_size() < 1 || request.tokens_size() >= limit) {
    return InvalidField("PROMPT_LENGTH", "tokens",
                        absl::StrCat(request.tokens_size(), " given, expected 1 to ", limit - 1,
                                     " (--max-model-len ", limit, ", one left to generate)"));
  }
  if (request.has_prefill() && request.prefill().address().empty()) {
    return InvalidField("PREFILL_ADDRESS", "prefill.address", "empty, expected host:port");
  }
  return worker::CheckTokenFields(request, engine_.config().vocab_size);
}

grpc::ServerWriteReactor<internal::v1::DecodeResponse>* DecodeServer::Decode(
    grpc::CallbackServerContext* context, const internal::v1::DecodeRequest* request) {
  const uint64_t id = next_call_id_.fetch_add(1);
  auto stream = std::make_shared<GrpcDecodeStream>([this, id] { loop_.Cancel(id); });
  auto* reactor = GrpcDecodeStream::Open(stream);
  if (absl::Status status = Check(*request); !status.ok()) {
    BATON_LOG(Warning) << "decode from " << context->peer() << " refused: " << status.ToString();
    metrics_.Refused(ErrorReason(status));
    stream->Finish(status);
    return reactor;
  }
  auto call = std::make_shared<Call>();
  call->id = id;
  call->request_id = request->request_id();
  call->stream = std::move(stream);
  call->prefill = {request->prefill().address(), request->prefill().worker_id(),
                   request->prefill().epoch()};
  call->deadline = std::min(absl::FromChrono(context->deadline()), absl::Now() + max_request_time_);
  call->priority = ToPriority(request->priority());
  call->tenant = request->tenant();
  call->cache_salt = request->cache_salt();
  call->root = kv::RootPrefixKey(engine_.config().fingerprint, request->cache_salt(), "");
  call->request_tokens = request->tokens_size();
  call->prompt_tokens = worker::PromptTokens(*request);
  call->max_tokens =
      std::min(request->max_tokens(), engine_.max_model_len() - request->tokens_size());
  call->min_tokens = std::min(request->min_tokens(), call->max_tokens);
  call->n = std::max(1, request->n());
  call->stop_token_ids.assign(request->stop_token_ids().begin(), request->stop_token_ids().end());
  call->stop_token_set.insert(request->stop_token_ids().begin(), request->stop_token_ids().end());
  if (request->has_prompt_logprobs()) call->prompt_logprobs = request->prompt_logprobs();

  auto sequence = std::make_unique<Sequence>();
  sequence->tokens.assign(request->tokens().begin(), request->tokens().end());
  sequence->sampling = worker::FromProto(request->sampling());
  if (request->beam_width() > 0) {
    BeamSearch::Options beams;
    beams.width = request->beam_width();
    beams.n = call->n;
    beams.length_penalty = request->length_penalty();
    beams.max_tokens = call->max_tokens;
    beams.min_tokens = call->min_tokens;
    beams.stop_token_ids = call->stop_token_set;
    call->beams = std::make_shared<BeamSearch>(std::move(beams));
  } else {
    sequence->draws = call->n;
  }
  sequence->call = std::move(call);
  loop_.Submit(std::move(sequence));
  return reactor;
}

}  // namespace baton::decode_worker
