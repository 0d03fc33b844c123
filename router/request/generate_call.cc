#include "router/request/generate_call.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/random_id.h"
#include "common/tokenizer/tokenizer.h"
#include "router/fleet/roster.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/cache_miss.h"
#include "router/request/chat_prompt.h"
#include "router/request/entrance.h"
#include "router/request/prompt_sources.h"
#include "router/request/request_check.h"
#include "router/request/retry_budget.h"
#include "router/request/truncation.h"
#include "router/request/work_pool.h"
#include "router/request/worker_error.h"
#include "router/routing/decision_log.h"
#include "router/routing/route_planner.h"

namespace baton::router {

namespace decode_pb = ::baton::internal::v1;

namespace {

// Times between tokens are collected in the request, and added to the metrics so many at a time.
constexpr int kGapsAtOnce = 64;
// Prompts up to this size are prepared on the gRPC thread that received them: that takes some
// 50 µs, as much as handing them to another thread.
constexpr size_t kShortPromptBytes = 2048;

// A chat template may run for long on a short text.
bool IsShort(const v1::GenerateRequest& request) {
  // Counting the bytes of many ids takes long itself.
  return !request.has_messages() &&
         static_cast<size_t>(request.token_ids().ids_size()) <= kShortPromptBytes &&
         request.ByteSizeLong() <= kShortPromptBytes;
}

}  // namespace

GenerateCall::GenerateCall(RouterParts& parts, Caller caller)
    : parts_(parts),
      retry_(RetryContextOf(parts)),
      caller_(std::move(caller)),
      received_(parts.clock.SinceStart()),
      trace_(parts.tracer, caller_.trace, parts.options.served_model_name, caller_.chat,
             received_) {}

void GenerateCall::ShowSpecialTokens(std::vector<int32_t> ids) {
  absl::MutexLock lock(&mutex_);
  shown_special_tokens_ = std::move(ids);
}

void GenerateCall::ComputeOn(const Incarnation& process) {
  absl::MutexLock lock(&mutex_);
  only_ = process;
}

void GenerateCall::Rendered(absl::Duration begin, absl::Duration end, int dropped_tokens) {
  absl::MutexLock lock(&mutex_);
  dropped_prompt_tokens_ = dropped_tokens;
  trace_.Rendered(begin, end);
}

void GenerateCall::Start(v1::GenerateRequest request, absl::Time deadline, ResponseSink* sink) {
  {
    absl::MutexLock lock(&mutex_);
    sink_ = sink;
    deadline_ = deadline;
    if (request.request_id().empty()) request.set_request_id(RandomIdText());
    request_id_ = request.request_id();
    absl::Status checked =
        CheckRequest(request, parts_.options.served_model_name, parts_.options.max_prompt_bytes);
    if (checked.ok()) checked = BindToTenant(caller_, &request);
    if (checked.ok()) {
      class_ = ClassOf(parts_, request.tenant());
      if (caller_.default_max_tokens > 0) class_.default_max_tokens = caller_.default_max_tokens;
      checked = ApplyClass(class_, &request);
    }
    trace_.Started(request);
    if (checked.ok()) checked = Admit(request);
    if (!checked.ok()) return Fail(checked);
    registered_ = parts_.calls.Add(request.tenant(), request_id_, weak_from_this());
  }
  // A chat was rendered, and made into tokens, on a thread of the pool.
  if ((parts_.pool.OwnsThisThread() && request.has_token_ids()) || IsShort(request)) {
    Prepare(std::move(request));
    return;
  }
  auto shared = std::make_shared<v1::GenerateRequest>(std::move(request));
  if (parts_.pool.TryRun(
          [self = shared_from_this(), shared] { self->Prepare(std::move(*shared)); })) {
    return;
  }
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return;
  Fail(TokenizerQueueFull(parts_));
}

void GenerateCall::Refuse(const absl::Status& error, ResponseSink* sink) {
  absl::MutexLock lock(&mutex_);
  sink_ = sink;
  request_id_ = caller_.request_id;
  trace_.Refused(request_id_);
  Fail(error);
}

absl::Status GenerateCall::Admit(v1::GenerateRequest& request) {
  // The queue of the tokenizer is bounded in number only, so each request must be small.
  request.DiscardUnknownFields();
  if (std::optional<ModelInfo> model = parts_.roster.model()) {
    const int context = ContextOf(*model, class_);
    if (absl::Status fits = CheckIdCount(request, context); !fits.ok()) return fits;
  }
  absl::StatusOr<Entrance> entrance = Enter(parts_, caller_);
  if (!entrance.ok()) return entrance.status();
  entrance_ = *std::move(entrance);
  // The prompts before this one are reason enough to refuse most of a flood before it is tokenized.
  return CheckDeadline(parts_, deadline_, 0, 1);
}

void GenerateCall::Prepare(v1::GenerateRequest request) {
  RequestClass request_class;
  {
    absl::MutexLock lock(&mutex_);
    if (sink_ == nullptr) return;  // gone while it waited
    request_class = class_;
    trace_.Admitted(parts_.clock.SinceStart());
  }
  absl::StatusOr<PreparedRequest> prepared;
  const absl::StatusOr<int> dropped = RenderMessages(parts_, request_class, &request);
  if (!dropped.ok()) {
    prepared = dropped.status();
  } else if (std::optional<ModelInfo> model = parts_.roster.model()) {
    prepared = PrepareRequest(std::move(request), parts_.tokenizer, *model, request_class);
  } else {
    prepared = parts_.roster.NoDecodeWorker();
  }
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return;
  if (!prepared.ok()) return Fail(prepared.status());
  prepared_ = *std::move(prepared);
  trace_.Tokenized(prepared_.decode.tokens_size(), parts_.clock.SinceStart());
  prepared_.shown_special_tokens = std::move(shown_special_tokens_);
  prepared_.decode.set_request_id(request_id_);
  if (absl::Status admitted = AdmitPrompt(); !admitted.ok()) return Fail(admitted);
  usage_.set_prompt_tokens(prepared_.decode.tokens_size());
  usage_.set_dropped_prompt_tokens(prepared_.dropped_prompt_tokens + *dropped +
                                   dropped_prompt_tokens_);
  if (!prepared_.sources.empty()) FillBySource(prepared_.sources, 0, &usage_);
  answer_.emplace(parts_.tokenizer, prepared_);
  tokens_.resize(answer_->choice_count());
  Attempt first;
  first.choices.resize(answer_->choice_count());
  std::iota(first.choices.begin(), first.choices.end(), 0);
  parts_.retry_budget.OnRequest(Sequences(first));
  first_ = std::move(first);
  OpenFirst();
  if (sink_ != nullptr) parts_.watch.Add(weak_from_this());
}

absl::Status GenerateCall::AdmitPrompt() {
  if (absl::Status met = CheckDeadline(parts_, deadline_, prepared_.decode.tokens_size(),
                                       prepared_.decode.max_tokens());
      !met.ok()) {
    return met;
  }
  return AddPrompt(parts_, prepared_.decode.tokens_size(), &entrance_);
}

void GenerateCall::Cancel() {
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return;
  // gRPC reports a deadline that has passed as a cancellation, too.
  const bool late = parts_.clock.Now() >= deadline_;
  Fail(late ? DeadlinePassed()
            : MakeError(absl::StatusCode::kCancelled, "CANCELLED", "the client cancelled"));
}

bool GenerateCall::EndWith(const absl::Status& error) {
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return false;
  Fail(error);
  return true;
}

void GenerateCall::OnDecoded(int stream, const decode_pb::DecodeResponse& response) {
  absl::MutexLock lock(&mutex_);
  if (sink_ != nullptr && attempts_.contains(stream)) RelayTokens(stream, response);
}

void GenerateCall::RelayTokens(int stream, const decode_pb::DecodeResponse& response) {
  Attempt& attempt = attempts_.at(stream);
  attempt.OnMessage(response, parts_.awake.SinceStart(), &usage_);
  // The first stream that answers says how much of the client's prompt was cached.
  if (!first_token_at_) {
    usage_.set_cached_prompt_tokens(attempt.cached_tokens);
    if (!prepared_.sources.empty()) FillBySource(prepared_.sources, attempt.cached_tokens, &usage_);
  }
  // A stream that generates the rest of one choice must not end another, which may be waiting for a
  // worker.
  const bool has_news = !response.token_ids().empty() ||
                        response.finish() != decode_pb::DecodeResponse::FINISH_UNSPECIFIED;
  if (has_news && !attempt.whole && response.choice() != attempt.choices.front()) {
    BATON_REQUEST_LOG(Error, request_id_, trace_.context())
        << "worker " << attempt.route.answers.address << " was asked for choice "
        << attempt.choices.front() << " and sent tokens of " << response.choice();
    return Fail(FromWorker(grpc::Status::OK));
  }
  const int tokens_before = answer_->generated_tokens();
  absl::StatusOr<std::optional<v1::GenerateResponse>> delta =
      answer_->Take(response, &attempt.cursor);
  if (!delta.ok()) {
    BATON_REQUEST_LOG(Error, request_id_, trace_.context())
        << "worker " << attempt.route.answers.address << " sent a bad message: " << delta.status();
    return Fail(FromWorker(grpc::Status::OK));
  }
  usage_.set_generated_tokens(answer_->generated_tokens());
  // The token behind a prompt that is only scored is not for the client; it shows that the prompt
  // was computed.
  const int taken = prepared_.prompt_only ? response.token_ids_size()
                                          : answer_->generated_tokens() - tokens_before;
  if (!delta->has_value() && (taken == 0 || prepared_.prompt_only)) {
    return;  // a heartbeat, or what a search that starts anew says again
  }
  // A stop string may have ended the choice before its worker did.
  const bool ends = response.finish() != decode_pb::DecodeResponse::FINISH_UNSPECIFIED;
  const bool end_reported = ends && (*delta)->matched_stop().empty();
  RecordTokens(attempt, response.choice(), taken, end_reported);
  // An answer that is complete leaves its prompt to the history when it ends.
  if (!answer_->finished() && !std::exchange(prompt_remembered_, true)) {
    RememberPrompt(parts_, prepared_);
  }
  const bool done = absl::c_all_of(attempt.choices, [this](int choice) {
    mutex_.AssertHeld();
    return answer_->finished(choice);
  });
  if (!done) {
    if (delta->has_value()) Send(**std::move(delta), attempt, end_reported);
    return;
  }
  // A worker ends the stream itself after its last message. Where the router has found a stop
  // string, the worker does not know that its last message was the last.
  if (attempt.ends < static_cast<int>(attempt.choices.size())) attempt.handle->Cancel();
  const Attempt last = std::move(attempt);
  attempts_.erase(stream);
  parts_.planner.OnRouteEnded(last.route);
  trace_.StreamDone(stream, last, parts_.clock.SinceStart());
  Send(**std::move(delta), last, end_reported);
}

void GenerateCall::RecordTokens(Attempt& attempt, int choice, int token_count, bool ends) {
  const absl::Duration now = parts_.clock.SinceStart();
  attempt.past.OnTokens();
  if (token_count > 0 && attempt.token_messages == 0) {
    parts_.planner.OnFirstToken(attempt.route);
    parts_.decisions.OnFirstToken(*attempt.decision, now - attempt.sent_at, attempt.cached_tokens);
  }
  attempt.token_messages += token_count > 0 ? 1 : 0;
  attempt.ends += ends ? 1 : 0;
  // The first token overtakes the KV: only a second shows that the pair can do it.
  const bool works = ends || attempt.token_messages >= 2;
  if (works && !std::exchange(attempt.worked, true)) {
    parts_.planner.OnRouteWorked(attempt.route, attempt.kv_bytes > 0);
  }
  Tokens& tokens = tokens_[choice];
  if (!first_token_at_) {
    first_token_at_ = now;
    cache_miss_ = RecordCached(parts_, prepared_, attempt.route, attempt.cached_tokens);
    entrance_.ticket->OnFirstToken();
    parts_.metrics.FirstToken(now - received_);
    trace_.FirstToken(now);
  } else if (token_count > 0 && tokens.count > 0) {
    if (tokens.count == 1) parts_.metrics.SecondToken(now - tokens.last_at);
    gaps_.Add(now - tokens.last_at, token_count);
    if (gaps_.count() >= kGapsAtOnce) parts_.metrics.NextTokens(&gaps_);
  }
  tokens.count += token_count;
  tokens.last_at = newest_token_at_ = now;
}

// Sums over the streams that worked on the choice, one after the other. Where several decoded, or
// one was cut short, only the router knows how long that took, pauses included.
v1::Timings GenerateCall::TimingsOf(const Attempt& attempt, bool decode_reported) const {
  const decode_pb::DecodeTimings& past = attempt.past.timings;
  const decode_pb::DecodeTimings& now = attempt.timings;
  v1::Timings timings;
  timings.set_queue_ms(past.queue_ms() + now.queue_ms());
  timings.set_prefill_ms(past.prefill_ms() + now.prefill_ms());
  timings.set_kv_transfer_ms(past.kv_transfer_ms() + now.kv_transfer_ms());
  timings.set_decode_ms(decode_reported && !attempt.past.continued
                            ? now.decode_ms()
                            : absl::ToDoubleMilliseconds(newest_token_at_ - *first_token_at_));
  timings.set_ttft_ms(absl::ToDoubleMilliseconds(*first_token_at_ - received_));
  return timings;
}

void GenerateCall::Send(v1::GenerateResponse delta, const Attempt& from, bool end_reported) {
  if (absl::Status accepted = sink_->Accepts(delta); !accepted.ok()) {
    if (ErrorReason(accepted) == "READER_BEHIND") parts_.metrics.AnswerNotRead("answer_memory");
    return Fail(accepted);
  }
  *delta.mutable_usage() = usage_;
  const v1::FinishReason reason = delta.finish_reason();
  if (!std::exchange(id_sent_, true) || reason != v1::FINISH_REASON_UNSPECIFIED) {
    delta.set_request_id(request_id_);
  }
  if (reason != v1::FINISH_REASON_UNSPECIFIED) {
    delta.set_seed(prepared_.decode.sampling().seed());
    *delta.mutable_timings() = TimingsOf(from, end_reported);
    trace_.ChoiceEnded(reason);
  }
  if (answer_->finished()) {
    if (cache_miss_) *delta.mutable_usage()->mutable_cache_miss() = *std::move(cache_miss_);
    parts_.planner.OnAnswered(answer_->generated_tokens() / answer_->choice_count(), from.kv_bytes,
                              absl::Milliseconds(from.timings.kv_transfer_ms()));
    const std::vector<int> counts = answer_->token_counts();
    End(absl::StatusCode::kOk, reason)->Finish(delta, counts);
  } else {
    last_sent_at_ = parts_.awake.SinceStart();
    sink_->Send(delta);
  }
}

void GenerateCall::Fail(const absl::Status& error) {
  BATON_REQUEST_LOG(Debug, request_id_, trace_.context()) << "failed: " << error;
  trace_.Failed(error, parts_.clock.SinceStart());
  for (const char* reason : {"NO_WORKER", "TTFT_SLO_UNREACHABLE"}) {
    if (ErrorReason(error) == reason) parts_.metrics.RequestRejected(reason);
  }
  End(error.code(), v1::FINISH_REASON_UNSPECIFIED)->Fail(error);
}

// Counted before the answer goes out: a client that has the answer finds it in the metrics.
ResponseSink* GenerateCall::End(absl::StatusCode code, v1::FinishReason reason) {
  for (auto& [stream, attempt] : attempts_) {
    attempt.handle->Cancel();
    parts_.planner.OnRouteEnded(attempt.route);
  }
  attempts_.clear();
  first_.reset();
  waiting_.clear();
  registered_.reset();
  // A client that has the answer may send its next request, and a client that does not read its
  // answer holds no place.
  entrance_.Leave();
  RouterMetrics::RequestEnd end;
  end.code = code;
  end.finish_reason = reason;
  end.usage = usage_;
  if (answer_) {
    const std::vector<int> counts = answer_->token_counts();
    end.longest_choice_tokens = *absl::c_max_element(counts);
  }
  const absl::Duration now = parts_.clock.SinceStart();
  end.duration = now - received_;
  if (first_token_at_) {
    end.decode_duration = newest_token_at_ - *first_token_at_;
    parts_.admission.OnAnswer(answer_->generated_tokens() / answer_->choice_count(),
                              prepared_.decode.max_tokens(), end.decode_duration,
                              code == absl::StatusCode::kOk);
  }
  parts_.metrics.NextTokens(&gaps_);
  parts_.metrics.RequestEnded(end);
  if (code == absl::StatusCode::kOk) CountSlos(end.longest_choice_tokens);
  trace_.Ended(usage_, now);
  // The call may wait long for its client to read, so it frees what it no longer needs.
  answer_.reset();
  if (first_token_at_ && !prompt_remembered_) RememberPrompt(parts_, std::move(prepared_));
  prepared_ = PreparedRequest();
  answered_ = sink_;
  return std::exchange(sink_, nullptr);
}

void GenerateCall::CountSlos(int longest_choice_tokens) {
  if (class_.ttft_slo > absl::ZeroDuration()) {
    parts_.metrics.SloMeasured("ttft", *first_token_at_ - received_ <= class_.ttft_slo);
  }
  if (class_.inter_token_slo > absl::ZeroDuration() && longest_choice_tokens > 1) {
    const absl::Duration mean = (newest_token_at_ - *first_token_at_) / (longest_choice_tokens - 1);
    parts_.metrics.SloMeasured("inter_token", mean <= class_.inter_token_slo);
  }
}

void GenerateCall::OnSinkGone() {
  absl::MutexLock lock(&mutex_);
  answered_ = nullptr;
}

}  // namespace baton::router
