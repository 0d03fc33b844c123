#include "decode_worker/service.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/worker/token_sampling.h"
#include "decode_worker/beam_search.h"

namespace baton::decode_worker {
namespace {

constexpr int kMaxStopTokenIds = 1024;
constexpr int kMaxChoices = 16;
constexpr float kMaxLengthPenalty = 10;

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
  for (const int32_t token : request.tokens()) {
    if (token < 0 || token >= engine_.config().vocab_size) {
      return InvalidField(
          "TOKEN_ID", "tokens",
          absl::StrCat("id ", token, ", expected 0 to ", engine_.config().vocab_size - 1));
    }
  }
  if (request.max_tokens() < 1) {
    return InvalidField("MAX_TOKENS", "max_tokens",
                        absl::StrCat(request.max_tokens(), " given, expected 1 or more"));
  }
  if (request.stop_token_ids_size() > kMaxStopTokenIds) {
    return InvalidField(
        "STOP_TOKEN_IDS", "stop_token_ids",
        absl::StrCat(request.stop_token_ids_size(), " given, expected at most ", kMaxStopTokenIds));
  }
  if (request.has_prefill() && request.prefill().address().empty()) {
    return InvalidField("PREFILL_ADDRESS", "prefill.address", "empty, expected host:port");
  }
  if (request.min_tokens() < 0 || request.min_tokens() > request.max_tokens()) {
    return InvalidField("MIN_TOKENS", "min_tokens",
                        absl::StrCat(request.min_tokens(), " given, expected 0 to max_tokens, ",
                                     request.max_tokens()));
  }
  if (request.n() < 0 || request.n() > kMaxChoices) {
    return InvalidField("CHOICES", "n",
                        absl::StrCat(request.n(), " given, expected 0 to ", kMaxChoices));
  }
  if (request.beam_width() != 0 &&
      (request.beam_width() < 2 || request.beam_width() > kMaxChoices ||
       request.beam_width() < request.n())) {
    return InvalidField("CHOICES", "beam_width",
                        absl::StrCat(request.beam_width(), " given, expected 0, or 2 to ",
                                     kMaxChoices, " and at least n, ", request.n()));
  }
  if (!(std::abs(request.length_penalty()) <= kMaxLengthPenalty)) {
    return InvalidField("CHOICES", "length_penalty",
                        absl::StrCat(request.length_penalty(), " given, expected -",
                                     kMaxLengthPenalty, " to ", kMaxLengthPenalty));
  }
  return model::Validate(worker::FromProto(request.sampling()));
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
  call->deadline =
      std::min(absl::FromChrono(context->deadline()), absl::Now() + max_request_time_);
  call->priority = ToPriority(request->priority());
  call->tenant = request->tenant();
  call->cache_salt = request->cache_salt();
  call->root = kv::RootPrefixKey(engine_.config().fingerprint, request->cache_salt(), "");
  call->request_tokens = request->tokens_size();
  call->prompt_tokens =
      request->prompt_tokens() > 0 ? request->prompt_tokens() : request->tokens_size();
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
    // Beams are numbered like choices, and drawn from nothing but their proposals.
    sequence->sampling = model::SamplingParams();
    sequence->sampling.temperature = 0;
    sequence->sampling.logprobs = call->beams->proposals();
  } else {
    sequence->draws = call->n;
  }
  sequence->call = std::move(call);
  loop_.Submit(std::move(sequence));
  return reactor;
}

}  // namespace baton::decode_worker
