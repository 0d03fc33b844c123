// The part of GenerateCall that opens streams to workers, judges them, and goes on elsewhere.
//
// Before the first token another pair is invisible: the request is sent again as it was. After it,
// the tokens that the client has are sent behind the prompt, and the new worker goes on from there.
// Tokens depend on the request alone, the random numbers of a token on its position, so the client
// sees one text. Of n choices each is continued by a call of its own, as each has come another way;
// a search starts anew, and those of its results that the client has are not sent twice.
#include <algorithm>
#include <utility>

#include "common/base/error.h"
#include "common/base/log.h"
#include "router/generate_call.h"
#include "router/worker_error.h"

namespace baton::router {
namespace {

namespace decode_pb = ::baton::internal::v1;

// Before a stream that was lost is opened anew on the same worker, where there is no other. What
// cut it has then passed, or the worker is known to be gone.
constexpr absl::Duration kSameWorkerPause = absl::Milliseconds(500);
// Before a full worker is asked again; doubled with each refusal, up to a bound.
constexpr absl::Duration kFullWorkerPause = absl::Milliseconds(200);
constexpr int kMaxPauseDoublings = 3;

absl::Duration PauseAfter(int refusals) {
  return kFullWorkerPause * (1 << std::clamp(refusals - 1, 0, kMaxPauseDoublings));
}

void AddTimings(const decode_pb::DecodeTimings& more, decode_pb::DecodeTimings* sum) {
  sum->set_queue_ms(sum->queue_ms() + more.queue_ms());
  sum->set_prefill_ms(sum->prefill_ms() + more.prefill_ms());
  sum->set_kv_transfer_ms(sum->kv_transfer_ms() + more.kv_transfer_ms());
}

}  // namespace

absl::Status GenerateCall::Open(Attempt attempt) {
  decode_pb::DecodeRequest request =
      attempt.whole ? answer_->Whole() : answer_->RestOf(attempt.choices.front());
  RouteRequest wanted;
  wanted.model_fingerprint = request.model_fingerprint();
  wanted.keys = prepared_.keys;
  wanted.prompt_tokens = request.tokens_size();
  wanted.max_answer_tokens = request.max_tokens();
  wanted.avoid = attempt.past.avoid;
  wanted.avoided_prefill_may_do = attempt.past.refusals > 0;
  wanted.warm_prefill = attempt.past.warm_prefill;
  wanted.failed = attempt.past.failed;
  wanted.lost = attempt.past.lost;
  wanted.explain = true;
  wanted.may_refuse = attempt.past.tries == 0;
  absl::StatusOr<Route> route = parts_.membership.Choose(wanted);
  if (!route.ok()) return route.status();
  attempt.route = *std::move(route);
  attempt.sent_at = parts_.clock.SinceStart();
  attempt.route.why->request_id = request_id_;
  attempt.route.why->time = parts_.clock.Now();
  attempt.decision = parts_.decisions.Add(std::move(attempt.route.why));
  parts_.metrics.Routed(attempt.route.decision, parts_.membership.policy_name());
  BATON_LOG(Debug) << "request " << request_id_ << ": " << wanted.prompt_tokens << " tokens to "
                   << attempt.route.prefill.address << " (" << attempt.route.matched_blocks
                   << " blocks cached) and " << attempt.route.decode.address;
  request.set_decode_epoch(attempt.route.decode.epoch);
  if (attempt.route.prefill.worker != kNoWorker) {
    request.mutable_prefill()->set_address(attempt.route.prefill.address);
    request.mutable_prefill()->set_worker_id(attempt.route.prefill.worker_id);
    request.mutable_prefill()->set_epoch(attempt.route.prefill.epoch);
  }
  attempt.cursor = attempt.whole ? answer_->AtStart() : answer_->AtEnd();
  const int stream = next_stream_++;
  const int worker = attempt.route.decode.worker;
  holds_.push_back(attempt.route.prefill.hold);
  holds_.push_back(attempt.route.decode.hold);
  attempt.handle =
      parts_.network.Open(worker, std::move(request), deadline_, shared_from_this(), stream);
  attempts_.emplace(stream, std::move(attempt));
  return absl::OkStatus();
}

// A search is as many sequences as it has beams, however many of them it returns.
int GenerateCall::Sequences(const Attempt& attempt) const {
  if (!attempt.whole) return 1;
  return std::max(answer_->choice_count(), prepared_.decode.beam_width());
}

// A retry, which the budget has allowed.
absl::Status GenerateCall::OpenAgain(Attempt attempt) {
  const std::string reason = attempt.past.reason;
  if (absl::Status opened = Open(std::move(attempt)); !opened.ok()) return opened;
  if (first_token_at_) {
    parts_.metrics.RequestFailedOver(reason);
  } else {
    parts_.metrics.RequestRetried(reason);
  }
  return absl::OkStatus();
}

void GenerateCall::OnStreamEnd(int stream, const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  const auto found = attempts_.find(stream);
  // Given up or answered: what the worker says of it now is of no interest.
  if (sink_ == nullptr || found == attempts_.end()) return;
  found->second.handle = nullptr;
  const Route& route = found->second.route;
  BATON_LOG(Warning) << "request " << request_id_ << " failed on decode worker "
                     << route.decode.address << " with prefill worker "
                     << (route.prefill.worker == kNoWorker ? "(none)" : route.prefill.address)
                     << " after " << usage_.generated_tokens()
                     << " tokens: " << (status.ok() ? "no finish" : status.error_message())
                     << " (code " << status.error_code() << ")";
  Lose(stream, FromWorker(status));
}

void GenerateCall::Lose(int stream, const absl::Status& error) {
  Attempt attempt = std::move(attempts_.at(stream));
  attempts_.erase(stream);
  if (attempt.handle != nullptr) attempt.handle->Cancel();
  const Blame blame = BlameFor(error);
  parts_.membership.OnRouteFailed(attempt.route, blame);
  if (!AnotherPairMayDo(error, first_token_at_.has_value())) return Fail(error);
  std::vector<int> rest;
  for (int choice : attempt.choices) {
    if (answer_->finished(choice)) continue;
    if (auto end = answer_->EndIfComplete(choice)) {
      Send(*std::move(end), attempt, /*end_told=*/false);
      if (sink_ == nullptr) return;
    } else {
      rest.push_back(choice);
    }
  }
  if (rest.empty()) return;
  Past past = std::move(attempt.past);
  past.continued = past.continued || attempt.token_messages > 0;
  past.reason = ErrorReason(error);
  AddTimings(attempt.timings, &past.timings);
  past.avoid.push_back(attempt.route.decode.worker);
  past.failed.push_back(attempt.route);
  if (IsRefusal(error)) {
    // Whoever is full may have room a moment later. A client that has tokens waits for that; for
    // another one the first refusal stands, after one look elsewhere.
    if (++past.refusals > 1 && !first_token_at_) return Fail(error);
  } else {
    past.lost_at = parts_.clock.SinceStart();
    if (++past.tries >= kMaxTries) return Fail(error);
  }
  if (blame == Blame::kDecodeWorker || past.reason == "WORKER_EXPIRED") {
    // The prefill worker did its part, and has the prompt: it is the best to ask again.
    past.lost.push_back(attempt.route);
    past.warm_prefill = attempt.token_messages > 0 ? attempt.route.prefill.worker : kNoWorker;
  } else if (attempt.worked) {
    past.warm_prefill = attempt.route.prefill.worker;  // the decode worker drains, say
  } else if (attempt.route.prefill.worker != kNoWorker) {
    past.avoid.push_back(attempt.route.prefill.worker);
  }
  GoOn(std::move(rest), std::move(past), error);
}

void GenerateCall::GoOn(std::vector<int> choices, Past past, const absl::Status& error) {
  std::vector<Attempt> next;
  const bool begun = first_token_at_.has_value();
  if (!begun || answer_->is_search()) {
    next.emplace_back().choices = std::move(choices);
  } else {
    for (int choice : choices) {
      next.emplace_back().choices = {choice};
      next.back().whole = false;
    }
  }
  // All or nothing: what some of the choices took for an answer that fails would be wasted. Those
  // that wait for a worker have it taken already, so that their tries do not come between others'.
  int sequences = 0;
  for (const Attempt& attempt : next) sequences += Sequences(attempt);
  if (!parts_.retry_budget.TryTake(sequences)) {
    parts_.metrics.RetryBudgetExhausted();
    if (IsRefusal(error)) return Fail(error);
    return Fail(WithRetryAfter(
        MakeError(absl::StatusCode::kUnavailable, "RETRY_BUDGET_EXHAUSTED",
                  "the request's worker was lost, and so were those of too many others"),
        absl::Seconds(1)));
  }
  const absl::Duration now = parts_.clock.SinceStart();
  const bool refused = IsRefusal(error);
  const absl::Duration pause = refused ? PauseAfter(past.refusals) : absl::ZeroDuration();
  // One look elsewhere is enough to see that the others are full, too.
  const bool at_once = !refused || past.refusals == 1;
  for (Attempt& attempt : next) {
    attempt.past = past;
    if (at_once && OpenAgain(attempt).ok()) continue;
    if (!begun) {
      // Nothing has been sent: the client can try again itself, and knows best whether to.
      parts_.retry_budget.GiveBack(sequences);
      return Fail(error);
    }
    waiting_.push_back({std::move(attempt), error, now, now + pause});
  }
}

void GenerateCall::OnTick() {
  absl::MutexLock lock(&mutex_);
  // A client without a deadline that stops reading would hold its place for ever.
  if (answered_ != nullptr && parts_.clock.Now() >= deadline_) {
    std::exchange(answered_, nullptr)->Abort();
  }
  const absl::Duration now = parts_.clock.SinceStart();
  const absl::Duration bound = absl::Milliseconds(parts_.options.stall_timeout_ms);
  std::vector<std::pair<int, absl::Status>> lost;
  for (const auto& [stream, attempt] : attempts_) {
    const bool stalled = attempt.heard && now - attempt.last_message > bound;
    if (!stalled && parts_.membership.MayLive(attempt.route.decode)) continue;
    lost.emplace_back(stream, LostWorker(stalled ? "WORKER_STALLED" : "WORKER_EXPIRED"));
  }
  for (const auto& [stream, error] : lost) {
    if (sink_ == nullptr) return;
    BATON_LOG(Warning) << "request " << request_id_ << " leaves decode worker "
                       << attempts_.at(stream).route.decode.address << " after "
                       << usage_.generated_tokens() << " tokens: " << ErrorReason(error);
    Lose(stream, error);
  }
  if (sink_ != nullptr) FindWorkers();
}

void GenerateCall::FindWorkers() {
  const absl::Duration now = parts_.clock.SinceStart();
  const absl::Duration bound = absl::Milliseconds(parts_.options.failover_wait_ms);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Past& past = it->attempt.past;
    if (now - past.lost_at >= kSameWorkerPause) {
      past.lost.clear();
      past.avoid.clear();
      past.failed.clear();
    }
    const absl::Duration waited = past.waited + (now - it->since);
    if (now >= it->not_before) {
      if (past.refusals > 0) past.failed.clear();  // what was full may have room now
      Attempt attempt = it->attempt;
      attempt.past.waited = waited;
      if (OpenAgain(std::move(attempt)).ok()) {
        it = waiting_.erase(it);
        continue;
      }
    }
    if (waited >= bound) {
      const absl::Status error = it->error;  // which goes with all that waits
      return Fail(error);
    }
    ++it;
  }
}

}  // namespace baton::router
