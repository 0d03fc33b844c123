// The part of GenerateCall that opens streams to workers, judges them, and goes on elsewhere.
//
// Before the first token another pair is invisible: the request is sent again as it was. After it,
// the tokens that the client has are sent behind the prompt, and the new worker goes on from there.
// Tokens depend on the request alone, the random numbers of a token on its position, so the client
// sees one text. Of n choices each is continued by a call of its own, as each has come another way;
// a search starts anew, and what is known of its result is compared and not sent twice.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
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
constexpr absl::Duration kFullWorkerPause = absl::Milliseconds(200);

bool SameProcess(const WorkerTarget& a, const WorkerTarget& b) {
  return a.worker == b.worker && a.epoch == b.epoch;
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
  wanted.avoid = attempt.past.avoid;
  wanted.avoided_prefill_may_do = attempt.past.refused;
  wanted.warm_prefill = attempt.past.warm_prefill;
  wanted.may_refuse = attempt.past.tries == 0;
  absl::StatusOr<Route> route = parts_.membership.Choose(wanted);
  if (!route.ok()) return route.status();
  const auto same_pair = [&](const Route& failed) {
    return SameProcess(failed.prefill, route->prefill) && SameProcess(failed.decode, route->decode);
  };
  const auto same_decode = [&](const Route& lost) {
    return SameProcess(lost.decode, route->decode);
  };
  if (absl::c_any_of(attempt.past.failed, same_pair) ||
      absl::c_any_of(attempt.past.lost, same_decode)) {
    return absl::UnavailableError("no other pair");
  }
  attempt.route = *std::move(route);
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

// A retry, which the budget must allow.
absl::Status GenerateCall::OpenAgain(Attempt attempt) {
  const int sequences = attempt.whole ? answer_->choice_count() : 1;
  if (!parts_.retry_budget.TryTake(sequences)) {
    parts_.metrics.RetryBudgetExhausted();
    return WithRetryAfter(
        MakeError(absl::StatusCode::kUnavailable, "RETRY_BUDGET_EXHAUSTED",
                  "the request's worker was lost, and so were those of too many others"),
        absl::Seconds(1));
  }
  const std::string reason = attempt.past.reason;
  if (absl::Status opened = Open(std::move(attempt)); !opened.ok()) {
    parts_.retry_budget.GiveBack(sequences);
    return opened;
  }
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
    } else {
      rest.push_back(choice);
    }
  }
  if (sink_ == nullptr || rest.empty()) return;
  Past past = std::move(attempt.past);
  // Whoever is full may have room a moment later, but for the client the first refusal stands,
  // after one look elsewhere.
  if (IsRefusal(error) && !first_token_at_ && std::exchange(past.refused, true)) return Fail(error);
  if (++past.tries >= kMaxTries) return Fail(error);
  past.continued = past.continued || attempt.token_messages > 0;
  past.reason = ErrorReason(error);
  AddTimings(attempt.timings, &past.timings);
  past.avoid.push_back(attempt.route.decode.worker);
  past.failed.push_back(attempt.route);
  if (blame == Blame::kDecodeWorker || past.reason == "WORKER_EXPIRED") {
    // The prefill worker did its part, and has the prompt: it is the best to ask again.
    past.lost.push_back(attempt.route);
    past.warm_prefill = attempt.token_messages > 0 ? attempt.route.prefill.worker : kNoWorker;
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
  const absl::Duration now = parts_.clock.SinceStart();
  for (Attempt& attempt : next) {
    attempt.past = past;
    const absl::Status opened = OpenAgain(attempt);
    if (opened.ok()) continue;
    const bool no_budget = ErrorReason(opened) == "RETRY_BUDGET_EXHAUSTED";
    if (no_budget && !IsRefusal(error)) return Fail(opened);
    // Nothing has been sent: the client can try again itself, and knows best whether to.
    if (!begun || no_budget) return Fail(error);
    const absl::Duration pause = IsRefusal(error) ? kFullWorkerPause : absl::ZeroDuration();
    waiting_.push_back({std::move(attempt), error, now, now + pause});
  }
}

void GenerateCall::OnTick() {
  absl::MutexLock lock(&mutex_);
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
  std::vector<Waiting> waiting = std::exchange(waiting_, {});
  for (Waiting& one : waiting) {
    if (now - one.since >= kSameWorkerPause) {
      one.attempt.past.avoid.clear();
      one.attempt.past.lost.clear();
      one.attempt.past.failed.clear();
    }
    if (now >= one.not_before) {
      const absl::Status opened = OpenAgain(one.attempt);
      if (opened.ok()) continue;
      if (ErrorReason(opened) == "RETRY_BUDGET_EXHAUSTED") return Fail(opened);
    }
    if (now - one.since >= absl::Milliseconds(parts_.options.failover_wait_ms)) {
      return Fail(one.error);
    }
    waiting_.push_back(std::move(one));
  }
}

}  // namespace baton::router
