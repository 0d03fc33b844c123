#include "router/request/generate_call.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/random_id.h"
#include "router/request/worker_error.h"

namespace baton::router {

namespace decode_pb = ::baton::internal::v1;

namespace {

// Of an answer's times between tokens, so many go to the metrics of all requests together.
constexpr int kGapsAtOnce = 64;
// Prompts up to here are prepared where they arrive, on a thread of gRPC's: some 50 µs, which is
// what handing them to another thread costs.
constexpr size_t kShortPromptBytes = 2048;

bool IsShort(const v1::GenerateRequest& request) {
  return request.ByteSizeLong() <= kShortPromptBytes;
}

}  // namespace

void GenerateCall::Start(v1::GenerateRequest request, absl::Time deadline, ResponseSink* sink) {
  {
    absl::MutexLock lock(&mutex_);
    sink_ = sink;
    deadline_ = deadline;
    if (request.request_id().empty()) request.set_request_id(RandomIdText());
    request_id_ = request.request_id();
    absl::Status checked =
        CheckRequest(request, parts_.options.served_model_name, parts_.options.max_prompt_bytes);
    if (checked.ok()) checked = Admit(request);
    if (!checked.ok()) return Fail(checked);
  }
  if (IsShort(request)) {
    Prepare(request);
    return;
  }
  auto shared = std::make_shared<const v1::GenerateRequest>(std::move(request));
  if (parts_.pool.TryRun([self = shared_from_this(), shared] { self->Prepare(*shared); })) return;
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return;
  Fail(Overloaded("TOKENIZER_QUEUE_FULL",
                  absl::StrCat(parts_.options.max_queued_prompts,
                               " prompts wait to be tokenized, which is this router's limit"),
                  parts_.admission.RetryAfter()));
}

void GenerateCall::Refuse(const absl::Status& error, ResponseSink* sink) {
  absl::MutexLock lock(&mutex_);
  sink_ = sink;
  Fail(error);
}

absl::Status GenerateCall::Overloaded(absl::string_view reason, absl::string_view message,
                                      absl::Duration retry_after) const {
  parts_.metrics.RequestRejected(reason);
  return WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, reason, message),
                        retry_after);
}

absl::Status GenerateCall::Admit(v1::GenerateRequest& request) {
  // What waits for the tokenizer is bounded in number only, so each must be small.
  request.DiscardUnknownFields();
  if (std::optional<ModelInfo> model = parts_.membership.model()) {
    if (absl::Status fits = CheckIdCount(request, model->max_model_len); !fits.ok()) return fits;
  }
  if (parts_.continuations.KeepsNewOut(parts_.clock.SinceStart())) {
    return Overloaded("SURVIVORS_FULL",
                      "workers were lost, and the others have no room yet for what they had",
                      parts_.admission.RetryAfter());
  }
  ticket_ = parts_.admission.TryEnter();
  if (!ticket_) {
    return Overloaded("TOO_MANY_REQUESTS",
                      absl::StrCat(parts_.options.max_inflight_requests,
                                   " requests are running, which is this router's limit"),
                      parts_.admission.RetryAfter());
  }
  // What those before it take is enough to refuse most of a flood before it is tokenized.
  return CheckDeadline(0, 1);
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
  if (absl::Status admitted = AdmitPrompt(); !admitted.ok()) return Fail(admitted);
  usage_.set_prompt_tokens(prepared_.decode.tokens_size());
  answer_.emplace(parts_.tokenizer, prepared_);
  last_token_at_.resize(answer_->choice_count());
  Attempt first;
  first.choices.resize(answer_->choice_count());
  std::iota(first.choices.begin(), first.choices.end(), 0);
  parts_.retry_budget.OnRequest(Sequences(first));
  if (absl::Status sent = Open(first); !sent.ok()) return Fail(sent);
  parts_.watch.Add(weak_from_this());
}

// A queue as long as the deadlines allow would serve nobody in time as soon as anything took longer
// than it was thought to: a prompt that waits may wait twice as long as estimated.
absl::Status GenerateCall::CheckDeadline(int64_t tokens, int64_t max_tokens) {
  const absl::Duration left = deadline_ - parts_.clock.Now();
  if (left <= absl::ZeroDuration()) {
    parts_.metrics.RequestRejected("DEADLINE_UNREACHABLE");
    return MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE_UNREACHABLE",
                     "the request's deadline passed before any worker was asked");
  }
  const Admission::Estimate estimate = parts_.admission.EstimatedTimes(tokens, max_tokens);
  const absl::Duration answer = estimate.last_token - estimate.first_token;
  const absl::Duration needed = 2 * estimate.first_token + answer;
  if (needed <= left) return absl::OkStatus();
  return Overloaded(
      "DEADLINE_UNREACHABLE",
      absl::StrCat("the prompts before this one and its own take about ",
                   absl::ToInt64Milliseconds(estimate.first_token), " ms, and perhaps twice that, ",
                   "the answer ", absl::ToInt64Milliseconds(answer),
                   " ms more, and its deadline is in ", absl::ToInt64Milliseconds(left), " ms"),
      // When so much less waits that it would do.
      std::max((needed - left) / 2, absl::Milliseconds(50)));
}

absl::Status GenerateCall::AdmitPrompt() {
  if (absl::Status met =
          CheckDeadline(prepared_.decode.tokens_size(), prepared_.decode.max_tokens());
      !met.ok()) {
    return met;
  }
  if (!ticket_->TryAddPrompt(prepared_.decode.tokens_size())) {
    return Overloaded(
        "TOO_MANY_PROMPT_TOKENS",
        absl::StrCat("with this prompt, more than ", parts_.options.max_inflight_prompt_tokens,
                     " prompt tokens would be running, this router's limit"),
        parts_.admission.RetryAfter());
  }
  return absl::OkStatus();
}

void GenerateCall::Cancel() {
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return;
  // gRPC reports a deadline that has passed as a cancellation, too.
  const bool late = parts_.clock.Now() >= deadline_;
  Fail(late ? DeadlinePassed()
            : MakeError(absl::StatusCode::kCancelled, "CANCELLED", "the client cancelled"));
}

void GenerateCall::OnDecoded(int stream, const decode_pb::DecodeResponse& response) {
  absl::MutexLock lock(&mutex_);
  if (sink_ != nullptr && attempts_.contains(stream)) RelayTokens(stream, response);
}

void GenerateCall::RelayTokens(int stream, const decode_pb::DecodeResponse& response) {
  Attempt& attempt = attempts_.at(stream);
  attempt.heard = true;
  attempt.hold.reset();
  attempt.last_message = parts_.clock.SinceStart();
  if (response.has_timings()) attempt.timings = response.timings();
  if (response.has_usage()) {
    // What was cached of the client's prompt is told by the first to answer; what was moved, by
    // all.
    if (!first_token_at_) usage_.set_cached_prompt_tokens(response.usage().cached_prompt_tokens());
    attempt.cached_tokens = response.usage().cached_prompt_tokens();
    usage_.set_kv_bytes(usage_.kv_bytes() + response.usage().kv_bytes() - attempt.kv_bytes);
    attempt.kv_bytes = response.usage().kv_bytes();
  }
  // A stream that brings the rest of one choice has nothing to say of another: that may be waiting
  // for a worker, and is not to end meanwhile.
  const bool says_something = !response.token_ids().empty() ||
                              response.finish() != decode_pb::DecodeResponse::FINISH_UNSPECIFIED;
  if (says_something && !attempt.whole && response.choice() != attempt.choices.front()) {
    BATON_LOG(Error) << "request " << request_id_ << ": decode worker "
                     << attempt.route.decode.address << " was asked for choice "
                     << attempt.choices.front() << " and sent tokens of " << response.choice();
    return Fail(FromWorker(grpc::Status::OK));
  }
  const int tokens_before = answer_->generated_tokens();
  absl::StatusOr<std::optional<v1::GenerateResponse>> delta =
      answer_->Take(response, &attempt.cursor);
  if (!delta.ok()) {
    BATON_LOG(Error) << "request " << request_id_ << ": decode worker "
                     << attempt.route.decode.address << " said " << delta.status();
    return Fail(FromWorker(grpc::Status::OK));
  }
  usage_.set_generated_tokens(answer_->generated_tokens());
  const int taken = answer_->generated_tokens() - tokens_before;
  if (taken == 0 && !delta->has_value()) return;  // alive, and no more
  // A stop string may have ended the choice before its worker did.
  const bool ends = response.finish() != decode_pb::DecodeResponse::FINISH_UNSPECIFIED;
  const bool end_told = ends && (*delta)->matched_stop().empty();
  NoteArrival(attempt, response.choice(), taken, end_told);
  const bool done = absl::c_all_of(attempt.choices, [this](int choice) {
    mutex_.AssertHeld();
    return answer_->finished(choice);
  });
  if (!done) {
    if (delta->has_value()) Send(**std::move(delta), attempt, end_told);
    return;
  }
  // A worker that has said its last word ends the stream itself; one that does not know that it
  // was the last, as the router found a stop string, is told.
  if (attempt.ends < static_cast<int>(attempt.choices.size())) attempt.handle->Cancel();
  const Attempt last = std::move(attempt);
  attempts_.erase(stream);
  Send(**std::move(delta), last, end_told);
}

void GenerateCall::NoteArrival(Attempt& attempt, int choice, int token_count, bool ends) {
  const absl::Duration now = parts_.clock.SinceStart();
  attempt.past.tries = 0;
  attempt.past.refusals = 0;
  attempt.past.avoid.clear();
  attempt.past.lost.clear();
  attempt.past.failed.clear();
  if (token_count > 0 && attempt.token_messages == 0) {
    parts_.membership.OnFirstToken(attempt.route);
    parts_.decisions.OnFirstToken(attempt.decision, now - attempt.sent_at, attempt.cached_tokens);
  }
  attempt.token_messages += token_count > 0 ? 1 : 0;
  attempt.ends += ends ? 1 : 0;
  // The first token overtakes the KV: only a second shows that the pair can do it.
  const bool works = ends || attempt.token_messages >= 2;
  if (works && !std::exchange(attempt.worked, true)) {
    parts_.membership.OnRouteWorked(attempt.route, attempt.kv_bytes > 0);
  }
  if (!first_token_at_) {
    first_token_at_ = now;
    ticket_->OnFirstToken();
    parts_.metrics.FirstToken(now - received_);
  } else if (token_count > 0 && last_token_at_[choice] > absl::ZeroDuration()) {
    gaps_.Add(now - last_token_at_[choice], token_count);
    if (gaps_.count() >= kGapsAtOnce) parts_.metrics.NextTokens(&gaps_);
  }
  last_token_at_[choice] = newest_token_at_ = now;
}

// Of all streams that worked on the choice, one after the other. Where several decoded, or one was
// cut short, only the router knows how long that took, pauses included.
v1::Timings GenerateCall::TimingsOf(const Attempt& attempt, bool decode_told) const {
  const decode_pb::DecodeTimings& past = attempt.past.timings;
  const decode_pb::DecodeTimings& now = attempt.timings;
  v1::Timings timings;
  timings.set_queue_ms(past.queue_ms() + now.queue_ms());
  timings.set_prefill_ms(past.prefill_ms() + now.prefill_ms());
  timings.set_kv_transfer_ms(past.kv_transfer_ms() + now.kv_transfer_ms());
  timings.set_decode_ms(decode_told && !attempt.past.continued
                            ? now.decode_ms()
                            : absl::ToDoubleMilliseconds(newest_token_at_ - *first_token_at_));
  timings.set_ttft_ms(absl::ToDoubleMilliseconds(*first_token_at_ - received_));
  return timings;
}

void GenerateCall::Send(v1::GenerateResponse delta, const Attempt& from, bool end_told) {
  if (!sink_->Fits(delta)) {
    return Fail(MakeError(absl::StatusCode::kOutOfRange, "ANSWER_TOO_LARGE",
                          "the answer is larger than what clients take in one message: expected "
                          "fewer logprobs or choices, or a call of Generate, which streams"));
  }
  *delta.mutable_usage() = usage_;
  const v1::FinishReason reason = delta.finish_reason();
  if (!std::exchange(id_sent_, true) || reason != v1::FINISH_REASON_UNSPECIFIED) {
    delta.set_request_id(request_id_);
  }
  if (reason != v1::FINISH_REASON_UNSPECIFIED) {
    delta.set_seed(prepared_.decode.sampling().seed());
    *delta.mutable_timings() = TimingsOf(from, end_told);
  }
  if (answer_->finished()) {
    parts_.membership.OnAnswered(answer_->generated_tokens() / answer_->choice_count(),
                                 from.kv_bytes, absl::Milliseconds(from.timings.kv_transfer_ms()));
    Ended(absl::StatusCode::kOk, reason)->Finish(delta, answer_->token_counts());
  } else {
    last_sent_at_ = parts_.clock.SinceStart();
    sink_->Send(delta);
  }
}

void GenerateCall::Fail(const absl::Status& error) {
  BATON_LOG(Debug) << "request " << request_id_ << " failed: " << error;
  for (const char* reason : {"NO_WORKER", "TTFT_SLO_UNREACHABLE"}) {
    if (ErrorReason(error) == reason) parts_.metrics.RequestRejected(reason);
  }
  Ended(error.code(), v1::FINISH_REASON_UNSPECIFIED)->Fail(error);
}

// Whatever workers still do for the request is work for nobody. Counted before the answer goes out,
// so that who has the answer finds it in the metrics.
ResponseSink* GenerateCall::Ended(absl::StatusCode code, v1::FinishReason reason) {
  for (auto& [stream, attempt] : attempts_) attempt.handle->Cancel();
  attempts_.clear();
  waiting_.clear();
  RouterMetrics::RequestEnd end;
  end.code = code;
  end.finish_reason = reason;
  end.usage = usage_;
  if (answer_) {
    const std::vector<int> counts = answer_->token_counts();
    end.longest_choice_tokens = *absl::c_max_element(counts);
  }
  end.duration = parts_.clock.SinceStart() - received_;
  if (first_token_at_) {
    end.decode_duration = newest_token_at_ - *first_token_at_;
    parts_.admission.OnAnswer(answer_->generated_tokens() / answer_->choice_count(),
                              prepared_.decode.max_tokens(), end.decode_duration,
                              code == absl::StatusCode::kOk);
  }
  parts_.metrics.NextTokens(&gaps_);
  parts_.metrics.RequestEnded(end);
  answered_ = sink_;
  return std::exchange(sink_, nullptr);
}

void GenerateCall::OnSinkGone() {
  absl::MutexLock lock(&mutex_);
  answered_ = nullptr;
}

}  // namespace baton::router
