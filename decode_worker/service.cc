#include "decode_worker/service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/worker/token_sampling.h"

namespace baton::decode_worker {
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
  if (request.prefill().address().empty()) {
    return InvalidField("PREFILL_ADDRESS", "prefill.address", "empty, expected host:port");
  }
  return worker::CheckTokenFields(request, engine_.config().vocab_size);
}

grpc::ServerWriteReactor<internal::v1::DecodeResponse>* DecodeServer::Decode(
    grpc::CallbackServerContext* context, const internal::v1::DecodeRequest* request) {
  const uint64_t id = next_sequence_id_.fetch_add(1);
  auto stream = std::make_shared<GrpcDecodeStream>([this, id] { loop_.Cancel(id); });
  auto* reactor = GrpcDecodeStream::Open(stream);
  if (absl::Status status = Check(*request); !status.ok()) {
    BATON_LOG(Warning) << "decode from " << context->peer() << " refused: " << status.ToString();
    metrics_.Refused(ErrorReason(status));
    stream->Finish(status);
    return reactor;
  }
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->request_id = request->request_id();
  sequence->tokens.assign(request->tokens().begin(), request->tokens().end());
  sequence->prompt_tokens = request->tokens_size();
  sequence->max_tokens =
      std::min(request->max_tokens(), engine_.max_model_len() - request->tokens_size());
  sequence->sampling = worker::FromProto(request->sampling());
  sequence->stop_token_ids.insert(request->stop_token_ids().begin(),
                                  request->stop_token_ids().end());
  sequence->cache_salt = request->cache_salt();
  sequence->prefill = {request->prefill().address(), request->prefill().worker_id(),
                       request->prefill().epoch()};
  sequence->deadline =
      std::min(absl::FromChrono(context->deadline()), absl::Now() + max_request_time_);
  sequence->stream = std::move(stream);
  loop_.Submit(std::move(sequence));
  return reactor;
}

}  // namespace baton::decode_worker
