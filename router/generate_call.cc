#include "router/generate_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/random_id.h"
#include "router/worker_error.h"

namespace baton::router {
namespace {

namespace decode_pb = ::baton::internal::v1;

Relay::End EndOf(decode_pb::DecodeResponse::Finish finish) {
  return finish == decode_pb::DecodeResponse::FINISH_STOP     ? Relay::End::kStopToken
         : finish == decode_pb::DecodeResponse::FINISH_LENGTH ? Relay::End::kLength
                                                              : Relay::End::kNone;
}

v1::Timings ToTimings(const decode_pb::DecodeTimings& from, absl::Duration ttft) {
  v1::Timings timings;
  timings.set_queue_ms(from.queue_ms());
  timings.set_prefill_ms(from.prefill_ms());
  timings.set_kv_transfer_ms(from.kv_transfer_ms());
  timings.set_decode_ms(from.decode_ms());
  timings.set_ttft_ms(absl::ToDoubleMilliseconds(ttft));
  return timings;
}

}  // namespace

void GenerateCall::Start(v1::GenerateRequest request, absl::Time deadline, ResponseSink* sink) {
  absl::MutexLock lock(&mutex_);
  sink_ = sink;
  deadline_ = deadline;
  if (request.request_id().empty()) request.set_request_id(RandomIdText());
  request_id_ = request.request_id();
  absl::Status checked =
      CheckRequest(request, parts_.options.served_model_name, parts_.options.max_prompt_bytes);
  if (checked.ok()) checked = Admit(std::move(request));
  if (!checked.ok()) Fail(checked);
}

void GenerateCall::Refuse(const absl::Status& error, ResponseSink* sink) {
  absl::MutexLock lock(&mutex_);
  sink_ = sink;
  Fail(error);
}

absl::Status GenerateCall::Overloaded(absl::string_view reason, absl::string_view message) const {
  parts_.metrics.RequestRejected(reason);
  return WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, reason, message),
                        absl::Milliseconds(parts_.options.retry_after_ms));
}

absl::Status GenerateCall::Admit(v1::GenerateRequest request) {
  ticket_ = parts_.admission.TryEnter();
  if (!ticket_) {
    return Overloaded("TOO_MANY_REQUESTS",
                      absl::StrCat(parts_.options.max_inflight_requests,
                                   " requests are running, which is this router's limit"));
  }
  auto shared = std::make_shared<const v1::GenerateRequest>(std::move(request));
  if (!parts_.pool.TryRun([self = shared_from_this(), shared] { self->Prepare(*shared); })) {
    return Overloaded("TOKENIZER_QUEUE_FULL",
                      absl::StrCat(parts_.options.max_queued_prompts,
                                   " prompts wait to be tokenized, which is this router's limit"));
  }
  return absl::OkStatus();
}

void GenerateCall::Prepare(const v1::GenerateRequest& request) {
  {
    absl::MutexLock lock(&mutex_);
    if (sink_ == nullptr) return;  // gone while it waited
  }
  absl::StatusOr<PreparedRequest> prepared;
  if (std::optional<ModelInfo> model = parts_.membership.model()) {
    prepared = PrepareRequest(request, parts_.tokenizer, *model);
  } else {
    // Says what is wrong with the workers: none has ever introduced itself.
    prepared = parts_.membership.Choose(RouteRequest()).status();
  }
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return;
  if (!prepared.ok()) return Fail(prepared.status());
  prepared_ = *std::move(prepared);
  prepared_.decode.set_request_id(request_id_);
  usage_.set_prompt_tokens(prepared_.decode.tokens_size());
  relay_.emplace(parts_.tokenizer, prepared_.stops);
  if (absl::Status sent = Dispatch(); !sent.ok()) Fail(sent);
}

absl::Status GenerateCall::Dispatch() {
  RouteRequest wanted;
  wanted.model_fingerprint = prepared_.decode.model_fingerprint();
  wanted.keys = prepared_.keys;
  wanted.prompt_tokens = prepared_.decode.tokens_size();
  if (retried_) wanted.avoid = {route_.prefill.worker, route_.decode.worker};
  absl::StatusOr<Route> route = parts_.membership.Choose(wanted);
  if (!route.ok()) return route.status();
  const bool same_pair = retried_ && route->prefill.worker == route_.prefill.worker &&
                         route->decode.worker == route_.decode.worker;
  if (same_pair) return absl::UnavailableError("no other pair");
  route_ = *std::move(route);
  parts_.metrics.Routed(route_.decision, parts_.membership.policy_name());
  BATON_LOG(Debug) << "request " << request_id_ << ": " << wanted.prompt_tokens
                   << " prompt tokens to " << route_.prefill.address << " ("
                   << route_.matched_blocks << " blocks cached) and " << route_.decode.address;
  decode_pb::DecodeRequest request = prepared_.decode;
  request.set_decode_epoch(route_.decode.epoch);
  request.mutable_prefill()->set_address(route_.prefill.address);
  request.mutable_prefill()->set_worker_id(route_.prefill.worker_id);
  request.mutable_prefill()->set_epoch(route_.prefill.epoch);
  stream_ = DecodeStream::Open(*parts_.decode_stubs[route_.decode.worker], std::move(request),
                               deadline_, shared_from_this());
  return absl::OkStatus();
}

void GenerateCall::Cancel() {
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return;
  // gRPC reports a deadline that has passed as a cancellation, too.
  const bool late = parts_.clock.Now() >= deadline_;
  Fail(late ? MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXCEEDED",
                        "the request's deadline passed before its last token")
            : MakeError(absl::StatusCode::kCancelled, "CANCELLED", "the client cancelled"));
}

void GenerateCall::OnDecoded(const decode_pb::DecodeResponse& response) {
  absl::MutexLock lock(&mutex_);
  if (sink_ != nullptr) RelayTokens(response);
}

void GenerateCall::RelayTokens(const decode_pb::DecodeResponse& response) {
  if (response.has_usage()) {
    usage_.set_cached_prompt_tokens(response.usage().cached_prompt_tokens());
    usage_.set_kv_bytes(response.usage().kv_bytes());
  }
  const bool finished = response.finish() != decode_pb::DecodeResponse::FINISH_UNSPECIFIED;
  if (response.token_ids().empty() && !finished) return;
  const bool is_first = !first_token_at_.has_value();
  NoteArrival(response.token_ids_size());
  Relay::Piece piece = relay_->Append(response.token_ids(), EndOf(response.finish()));
  usage_.set_generated_tokens(usage_.generated_tokens() + static_cast<int>(piece.token_ids.size()));
  v1::GenerateResponse delta;
  delta.set_text(std::move(piece.text));
  if (prepared_.return_token_ids) {
    delta.mutable_token_ids()->Assign(piece.token_ids.begin(), piece.token_ids.end());
  }
  *delta.mutable_usage() = usage_;
  if (relay_->matched_stop()) {
    delta.set_matched_stop(*relay_->matched_stop());
    Finish(v1::FINISH_REASON_STOP, std::move(delta), response.timings());
  } else if (finished) {
    const bool stop = response.finish() == decode_pb::DecodeResponse::FINISH_STOP;
    Finish(stop ? v1::FINISH_REASON_STOP : v1::FINISH_REASON_LENGTH, std::move(delta),
           response.timings());
  } else if (is_first || !delta.text().empty() || !delta.token_ids().empty()) {
    // The first goes out even if its text is held back: its time is what clients measure.
    if (is_first) delta.set_request_id(request_id_);
    sink_->Send(delta);
  }
}

void GenerateCall::NoteArrival(int token_count) {
  const absl::Duration now = parts_.clock.SinceStart();
  if (!first_token_at_) {
    first_token_at_ = now;
    parts_.metrics.FirstToken(now - received_);
  } else if (token_count > 0) {
    parts_.metrics.NextTokens(now - last_token_at_, token_count);
  }
  last_token_at_ = now;
}

void GenerateCall::OnStreamEnd(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  stream_ = nullptr;
  if (sink_ == nullptr) return;  // answered; what the worker says of it now is of no interest
  const absl::Status error = FromWorker(status);
  BATON_LOG(Warning) << "request " << request_id_ << " failed on decode worker "
                     << route_.decode.address << " with prefill worker " << route_.prefill.address
                     << " after " << usage_.generated_tokens()
                     << " tokens: " << (status.ok() ? "no finish" : status.error_message())
                     << " (code " << status.error_code() << ")";
  if (!TryAnotherPair(error)) Fail(error);
}

// Invisible to the client, as nothing has been sent: once, and only before the first token.
bool GenerateCall::TryAnotherPair(const absl::Status& error) {
  if (retried_ || first_token_at_ || !AnotherPairMayDo(error)) return false;
  retried_ = true;
  if (!Dispatch().ok()) return false;
  parts_.metrics.RequestRetried(ErrorReason(error));
  return true;
}

void GenerateCall::Finish(v1::FinishReason reason, v1::GenerateResponse last,
                          const decode_pb::DecodeTimings& timings) {
  last.set_finish_reason(reason);
  last.set_seed(prepared_.decode.sampling().seed());
  last.set_request_id(request_id_);
  *last.mutable_timings() = ToTimings(timings, *first_token_at_ - received_);
  if (last.matched_stop().empty()) {
    stream_ = nullptr;  // the worker has said its last word and ends the stream itself
  } else {
    last.mutable_timings()->set_decode_ms(
        absl::ToDoubleMilliseconds(last_token_at_ - *first_token_at_));
  }
  Ended(absl::StatusCode::kOk, reason)->Finish(last);
}

void GenerateCall::Fail(const absl::Status& error) {
  BATON_LOG(Debug) << "request " << request_id_ << " failed: " << error;
  if (ErrorReason(error) == "NO_WORKER") parts_.metrics.RequestRejected("NO_WORKER");
  Ended(error.code(), v1::FINISH_REASON_UNSPECIFIED)->Fail(error);
}

// Whatever a worker still does for the request is work for nobody. Counted before the answer goes
// out, so that who has the answer finds it in the metrics.
ResponseSink* GenerateCall::Ended(absl::StatusCode code, v1::FinishReason reason) {
  if (stream_ != nullptr) stream_->Cancel();
  RouterMetrics::RequestEnd end;
  end.code = code;
  end.finish_reason = reason;
  end.usage = usage_;
  end.duration = parts_.clock.SinceStart() - received_;
  if (first_token_at_) end.decode_duration = last_token_at_ - *first_token_at_;
  parts_.metrics.RequestEnded(end);
  return std::exchange(sink_, nullptr);
}

}  // namespace baton::router
