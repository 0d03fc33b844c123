#include "prefill_worker/first_token_service.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server_stream.h"
#include "common/base/status_macros.h"
#include "common/prefill/request.h"
#include "common/worker/call_checks.h"
#include "common/worker/call_gate.h"
#include "common/worker/request_tokens.h"
#include "common/worker/token_sampling.h"

namespace baton::prefill_worker {
namespace {

using internal::v1::DecodeRequest;
using internal::v1::DecodeResponse;

absl::Status CheckOneToken(const DecodeRequest& request, uint64_t epoch,
                           const engine::Engine& engine) {
  BATON_RETURN_IF_ERROR(
      worker::CheckTarget("prefill", {request.decode_epoch(), epoch},
                          {request.model_fingerprint(), engine.config().fingerprint}));
  const int limit = engine.max_model_len();
  const int count = worker::TokensOf(request).size();
  if (count < 1 || count >= limit) {
    return InvalidField("PROMPT_LENGTH", "tokens",
                        absl::StrCat(count, " given, expected 1 to ", limit - 1,
                                     " (--max-model-len ", limit, ", one left to generate)"));
  }
  BATON_RETURN_IF_ERROR(worker::CheckKvHint(request));
  BATON_RETURN_IF_ERROR(worker::CheckTokenFields(request, engine.config().vocab_size));
  if (request.max_tokens() != 1 || request.n() > 1 || request.beam_width() > 0 ||
      request.has_structured_output()) {
    return InvalidField("NOT_ONE_TOKEN", "max_tokens",
                        "a prefill worker answers with one token of one choice, without beams and "
                        "structured output");
  }
  return absl::OkStatus();
}

// The answer: one message, which is sent once the token is known. What the worker does for its
// cache then does not delay it.
class FirstTokenStream final : public ServerStream<DecodeResponse, DecodeResponse>,
                               public prefill::TokenSink {
 public:
  FirstTokenStream(const DecodeRequest& request, std::function<void()> on_peer_gone)
      : stop_token_ids_(request.stop_token_ids().begin(), request.stop_token_ids().end()),
        wants_logprobs_(request.sampling().has_logprobs()),
        on_peer_gone_(std::move(on_peer_gone)) {
    answer_.set_choice(static_cast<int>(request.sampling().choice()));
  }

  void OnPromptLogprobs(int /*first_position*/, std::vector<v1::TokenLogprobs> logprobs) override {
    answer_.mutable_prompt_logprobs()->Add(logprobs.begin(), logprobs.end());
  }
  void OnFirstToken(prefill::FirstToken token) override {
    answer_.add_token_ids(token.token_id);
    if (wants_logprobs_) *answer_.add_logprobs() = std::move(token.logprobs);
    answer_.set_finish(absl::c_linear_search(stop_token_ids_, token.token_id)
                           ? DecodeResponse::FINISH_STOP
                           : DecodeResponse::FINISH_LENGTH);
    answer_.mutable_usage()->set_cached_prompt_tokens(token.cached_prompt_tokens);
    answer_.mutable_timings()->set_queue_ms(token.queue_ms);
    answer_.mutable_timings()->set_prefill_ms(token.prefill_ms);
    Push(std::move(answer_));
  }
  void Finish(const absl::Status& status) override { ServerStream::Finish(ToGrpcStatus(status)); }

 private:
  void Encode(DecodeResponse item, DecodeResponse* message) override { *message = std::move(item); }
  void OnPeerGone() override { on_peer_gone_(); }

  const std::vector<int32_t> stop_token_ids_;
  const bool wants_logprobs_;
  const std::function<void()> on_peer_gone_;
  DecodeResponse answer_;  // the loop's
};

}  // namespace

grpc::ServerWriteReactor<DecodeResponse>* FirstTokenService::Decode(
    grpc::CallbackServerContext* context, const DecodeRequest* request) {
  const uint64_t job_id = calls_.next_job_id.fetch_add(1);
  auto stream = std::make_shared<FirstTokenStream>(
      *request, [this, job_id, open = worker::OpenCalls::Count(calls_.open_calls)] {
        calls_.jobs.Cancel(job_id);
      });
  auto* reactor = FirstTokenStream::Open(stream);
  const TraceContext trace_context = tracing::JoinTrace(calls_.tracer, TraceOfCall(*context));
  const absl::Status allowed = worker::CheckCall(calls_.secret, *context);
  const absl::Status status =
      allowed.ok() ? CheckOneToken(*request, calls_.epoch, calls_.engine) : allowed;
  if (!status.ok()) {
    if (allowed.ok()) {  // strangers must not fill the log
      BATON_REQUEST_LOG(Warning, request->request_id(), trace_context)
          << "an answer of one token for " << context->peer() << " refused: " << status;
    }
    calls_.metrics.Refused(ErrorReason(status));
    stream->Finish(status);
    return reactor;
  }
  auto job = std::make_unique<prefill::PrefillJob>();
  prefill::FillJob(*request, absl::FromChrono(context->deadline()), calls_.engine, job.get());
  if (request->min_tokens() > 0) {
    job->suppressed.assign(request->stop_token_ids().begin(), request->stop_token_ids().end());
  }
  job->id = job_id;
  job->token_sink = std::move(stream);
  job->trace_context = trace_context;
  calls_.jobs.Submit(std::move(job));
  return reactor;
}

}  // namespace baton::prefill_worker
