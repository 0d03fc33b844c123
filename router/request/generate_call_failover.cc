// The part of GenerateCall that opens streams to workers, detects their loss, and retries
// elsewhere.
//
// Before the first token a retry is invisible to the client: the request is sent again as it was.
// After it, the tokens so far are sent behind the prompt, and the new worker continues from there.
// Tokens depend on the request alone, the random numbers of a token on its position, so the client
// sees one text. Each of n choices is continued by its own stream, because each has come to another
// length; a beam search starts again, and results that the client has are not sent twice.
//
// Bounds: a stream that was lost with its worker is retried for free, because each death costs at
// most the requests in flight. So is a refusal by a worker that drains: the router learns of the
// drain within its next report. Any other loss, and a refusal of a request that no worker has let
// in yet, is charged to the retry budget. Three such losses without a token between them fail the
// request, and so do three processes that ended while they ran it (loss_record.h). A request that
// has lost a worker waits for another one: for --failover-wait-ms while none is ready, and until
// its own deadline for room on the workers that are, with pauses between retries.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/stall_watch.h"
#include "router/fleet/roster.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/generate_call.h"
#include "router/request/retry_budget.h"
#include "router/request/worker_error.h"
#include "router/routing/decision_log.h"
#include "router/routing/route_planner.h"

namespace baton::router {
namespace {

namespace decode_pb = ::baton::internal::v1;

// Before a full worker is asked again; doubled with each refusal, up to a bound.
constexpr absl::Duration kFullWorkerPause = absl::Milliseconds(200);
constexpr int kMaxPauseDoublings = 3;
// A request that no worker lets in for so long keeps no new ones out any more: smaller requests may
// fit where it does not.
constexpr absl::Duration kLongestHold = absl::Seconds(30);
// So long after a pause, this process has noticed which connections did not outlast it.
constexpr absl::Duration kLossesAfterPause = absl::Seconds(1);

absl::Duration PauseAfter(int refusals) {
  return kFullWorkerPause * (1 << std::clamp(refusals - 1, 0, kMaxPauseDoublings));
}

}  // namespace

absl::Status GenerateCall::Open(Attempt& attempt) {
  decode_pb::DecodeRequest request =
      attempt.whole ? answer_->Whole() : answer_->RestOf(attempt.choices.front());
  RouteRequest wanted;
  wanted.model_fingerprint = request.model_fingerprint();
  wanted.keys = prepared_.keys;
  wanted.prompt_tokens = request.tokens_size();
  wanted.max_answer_tokens = request.max_tokens();
  wanted.avoid = attempt.past.avoid;
  wanted.avoided_prefill_may_do = attempt.past.refusals > 0;
  wanted.warm_worker = attempt.past.warm_worker;
  wanted.only_prefill = only_prefill_;
  wanted.failed = attempt.past.failed;
  wanted.lost = attempt.past.lost;
  wanted.explain = true;
  wanted.pool = PoolFor(class_, parts_.options, prepared_.decode.prompt_tokens());
  wanted.spill = class_.spill;
  wanted.ttft_slo = class_.ttft_slo;
  wanted.may_refuse = attempt.past.losses.count() + attempt.past.drains == 0;
  wanted.after_loss = attempt.past.losses.count() > 0 || attempt.past.lost_worker;
  const absl::Duration begin = parts_.clock.SinceStart();
  if (only_prefill_.worker != kNoWorker) {
    wanted.workers = RouteRequest::Workers::kPrefill;
  } else if (attempt.whole && IsOneToken(request)) {
    wanted.workers = RouteRequest::Workers::kPrefillIfAny;
  }
  absl::StatusOr<Route> route = parts_.planner.Choose(wanted);
  trace_.RouteChosen(route, parts_.planner.policy_name(), begin, parts_.clock.SinceStart());
  if (!route.ok()) return route.status();
  attempt.route = *std::move(route);
  attempt.sent_at = parts_.clock.SinceStart();
  attempt.sent_at_awake = parts_.awake.SinceStart();
  attempt.route.why->request_id = request_id_;
  attempt.route.why->time = parts_.clock.Now();
  attempt.decision = parts_.decisions.Add(std::move(attempt.route.why));
  parts_.metrics.Routed(attempt.route.decision, parts_.planner.policy_name());
  for (const v1::WorkerRole role : attempt.route.spilled) parts_.metrics.PoolSpilled(role);
  BATON_REQUEST_LOG(Debug, request_id_, trace_.context())
      << wanted.prompt_tokens << " tokens: " << attempt.route.computes.address << " computes ("
      << attempt.route.matched_blocks << " blocks cached), " << attempt.route.answers.address
      << " answers";
  request.set_continuation(MayWait(attempt.past));
  request.set_decode_epoch(attempt.route.answers.epoch);
  if (!attempt.route.together()) {
    request.mutable_prefill()->set_address(attempt.route.computes.address);
    request.mutable_prefill()->set_worker_id(attempt.route.computes.worker_id);
    request.mutable_prefill()->set_epoch(attempt.route.computes.epoch);
  }
  if (const WorkerTarget& holder = attempt.route.kv_holder; holder.worker != kNoWorker) {
    request.mutable_kv_holder()->set_address(holder.address);
    request.mutable_kv_holder()->set_worker_id(holder.worker_id);
    request.mutable_kv_holder()->set_epoch(holder.epoch);
    request.set_kv_holder_tokens(attempt.route.kv_holder_tokens);
  }
  attempt.cursor = attempt.whole ? answer_->AtStart() : answer_->AtEnd();
  const int stream = next_stream_++;
  const int worker = attempt.route.answers.worker;
  for (const WorkerTarget* target : {&attempt.route.computes, &attempt.route.answers}) {
    // Once for each worker: a request that waits for room may ask one often.
    if (!absl::c_linear_search(holds_, target->hold)) holds_.push_back(target->hold);
  }
  const TraceContext trace = trace_.Opened(stream, attempt, attempt.sent_at);
  attempt.handle =
      parts_.network.Open(worker, std::move(request), trace, deadline_, shared_from_this(), stream);
  attempts_.emplace(stream, std::move(attempt));
  return absl::OkStatus();
}

// A beam search counts for all of its beams, however many of them it returns.
int GenerateCall::Sequences(const Attempt& attempt) const {
  if (!attempt.whole) return 1;
  return std::max(answer_->choice_count(), prepared_.decode.beam_width());
}

bool GenerateCall::MayWait(const RetryState& past) const {
  return first_token_at_.has_value() || past.lost_worker;
}

// A retry that is charged to the budget already, or free.
absl::Status GenerateCall::OpenAgain(Attempt& attempt) {
  const std::string reason = attempt.past.reason;
  if (absl::Status opened = Open(attempt); !opened.ok()) return opened;
  trace_.Retried(/*begun=*/first_token_at_.has_value(), reason, parts_.clock.SinceStart());
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
  // The stream was given up, or the request is answered.
  if (sink_ == nullptr || found == attempts_.end()) return;
  found->second.handle = nullptr;
  const Route& route = found->second.route;
  BATON_REQUEST_LOG(Warning, request_id_, trace_.context())
      << "failed on " << route.answers.address << ", which answers what "
      << (route.together() ? "it" : route.computes.address) << " computes, after "
      << usage_.generated_tokens()
      << " tokens: " << (status.ok() ? "no finish" : status.error_message()) << " (code "
      << status.error_code() << ")";
  OnAttemptLost(stream, FromWorker(status));
}

void GenerateCall::OnAttemptLost(int stream, const absl::Status& error) {
  const Attempt attempt = std::move(attempts_.at(stream));
  attempts_.erase(stream);
  if (attempt.handle != nullptr) attempt.handle->Cancel();
  trace_.StreamLost(stream, error, parts_.clock.SinceStart());
  const Blame blame = BlameFor(error);
  // Connections that did not outlast a pause of this process broke because of it.
  const bool own_pause = parts_.awake.SincePause() <= kLossesAfterPause;
  parts_.planner.OnRouteFailed(attempt.route, own_pause ? Blame::kNone : blame);
  if (!AnotherPairMayDo(error, MayWait(attempt.past))) return Fail(error);
  std::vector<int> choices = Unfinished(attempt);
  if (sink_ == nullptr || choices.empty()) return;
  const bool refused = IsRefusal(error);
  std::vector<WorkerTarget> suspects;
  if (!refused) suspects = attempt.Suspects(blame);
  RetryState past = attempt.PastAfter(error, blame, parts_.roster, parts_.awake.SinceStart());
  // A full worker may have room a moment later. A request that workers have let in before waits for
  // that; any other fails with the second refusal.
  if (refused && past.refusals > 1 && !MayWait(past)) return Fail(error);
  if (past.losses.deaths() >= kMaxDeaths) return Fail(WorkersDied());
  // The second stream in a row ended before its first message, as if several workers were gone: the
  // next one is kept for a worker that is known to live.
  const bool unheard =
      !refused && blame == Blame::kAnswers && !attempt.heard && past.losses.count() > 1;
  // A stream may break a moment before the death of its worker is known.
  const bool unclear = !refused && past.losses.possible_deaths() >= kMaxDeaths;
  if (!refused && !unclear && past.losses.unproven() >= kMaxLosses) return Fail(error);
  RetryElsewhere(std::move(choices), std::move(past), error, std::move(suspects),
                 unheard || unclear);
}

std::vector<int> GenerateCall::Unfinished(const Attempt& attempt) {
  std::vector<int> unfinished;
  for (int choice : attempt.choices) {
    if (answer_->finished(choice)) continue;
    if (auto end = answer_->EndIfComplete(choice)) {
      Send(*std::move(end), attempt, /*end_reported=*/false);
      if (sink_ == nullptr) return {};
    } else {
      unfinished.push_back(choice);
    }
  }
  return unfinished;
}

bool GenerateCall::AnyLooksDead(const std::vector<WorkerTarget>& suspects) const {
  return absl::c_any_of(
      suspects, [this](const WorkerTarget& target) { return parts_.roster.LooksDead(target); });
}

// The budget was charged for a loss that a death may explain.
void GenerateCall::RecordCharge(int sequences, const std::vector<WorkerTarget>& suspects) {
  const absl::Duration now = parts_.awake.SinceStart();
  std::vector<Incarnation> processes;
  for (const WorkerTarget& target : suspects) processes.push_back(target.incarnation());
  parts_.retry_budget.Charged(sequences, processes, now);
  for (const WorkerTarget& target : suspects) {
    // The worker may have been found dead before the charge was recorded.
    if (!parts_.roster.LooksDead(target)) continue;
    parts_.metrics.OrphanedByDeath(parts_.retry_budget.OnDeath(target.incarnation(), now));
  }
}

void GenerateCall::HoldRoom(const absl::Status& refusal, absl::Duration pause,
                            Attempt* attempt) const {
  // Other refusals (a tenant's limit, a deadline that cannot be met) are not for want of room.
  if (ErrorReason(refusal) != "QUEUE_FULL") return;
  const absl::Duration until = std::min(parts_.awake.SinceStart() + pause + kAnswerTime,
                                        attempt->past.lost_at + kLongestHold);
  attempt->hold.emplace(&parts_.continuations, until);
}

void GenerateCall::RetryElsewhere(std::vector<int> choices, RetryState past,
                                  const absl::Status& error, std::vector<WorkerTarget> suspects,
                                  bool pauses) {
  std::vector<Attempt> next;
  if (!first_token_at_ || answer_->is_search()) {
    next.emplace_back().choices = std::move(choices);
  } else {
    for (int choice : choices) {
      next.emplace_back().choices = {choice};
      next.back().whole = false;
    }
  }
  int sequences = 0;
  for (const Attempt& attempt : next) sequences += Sequences(attempt);
  const bool refused = IsRefusal(error);
  const bool may_wait = MayWait(past);
  // Retries for want of room are paced, which bounds them.
  const bool drains = ErrorReason(error) == "DRAINING";
  const bool dead = !refused && !drains && AnyLooksDead(suspects);
  const bool owes = refused ? !may_wait : !drains && !dead;
  if (dead) parts_.metrics.OrphanedByDeath(sequences);
  if (!owes) suspects.clear();
  // All or nothing: an answer of which some choices cannot continue fails.
  const bool paid = !owes || parts_.retry_budget.TryTake(sequences);
  if (!paid && refused) {
    parts_.metrics.RetryBudgetExhausted();
    return Fail(error);
  }
  // After a second refusal in a row, all workers are likely full.
  // After a second drain, the router knows a moment later which workers are left.
  const bool at_once = refused ? past.refusals == 1 : past.drains <= 1 && !pauses;
  const absl::Duration pause = refused  ? PauseAfter(past.refusals)
                               : drains ? kFullWorkerPause
                               : pauses ? kSameWorkerPause
                                        : absl::ZeroDuration();
  const absl::Duration now = parts_.awake.SinceStart();
  const bool any_ready = parts_.roster.AnyDecodeWorkerReady();
  for (Attempt& attempt : next) {
    attempt.past = past;
    if (refused && may_wait) HoldRoom(error, pause, &attempt);
    const int count = Sequences(attempt);
    if (paid && at_once && OpenAgain(attempt).ok()) {
      if (owes && !refused) RecordCharge(count, suspects);
      continue;
    }
    if (paid && owes) parts_.retry_budget.GiveBack(count);
    // Nothing has been sent, and no worker was lost: the client can try again itself. Then there is
    // only one attempt.
    if (paid && !may_wait && !pauses) return Fail(error);
    WaitingAttempt waiting{std::move(attempt),
                           error,
                           now + pause,
                           suspects,
                           std::nullopt,
                           std::nullopt,
                           ContinuationLine::Place(&parts_.continuations)};
    if (!paid) waiting.unpaid_since = now;
    if (!any_ready) waiting.no_worker_since = now;
    waiting_.push_back(std::move(waiting));
  }
}

// A client that stops reading must not hold what its answer takes beyond its deadline.
void GenerateCall::CheckReader(absl::Duration now) {
  ResponseSink* const sink = sink_ != nullptr ? sink_ : answered_;
  if (sink == nullptr) return;
  absl::Status over;
  if (sink->Stalled(now)) {
    over = ReaderStalled(absl::Milliseconds(parts_.options.write_stall_timeout_ms));
    parts_.metrics.AnswerNotRead("stalled");
    if (sink_ != nullptr) Fail(over);
  } else if (answered_ != nullptr && parts_.clock.Now() >= deadline_) {
    over = DeadlinePassed();
  }
  if (!over.ok()) std::exchange(answered_, nullptr)->Abort(over);
}

absl::Status GenerateCall::CheckStream(const Attempt& attempt, absl::Duration now) const {
  const Route& route = attempt.route;
  const ProcessLife answers = parts_.roster.LifeOf(route.answers, attempt.last_message);
  if (attempt.Stalled(now, absl::Milliseconds(parts_.options.stall_timeout_ms))) {
    return LostWorker("WORKER_STALLED");
  }
  if (answers == ProcessLife::kGone) return LostWorker("WORKER_EXPIRED");
  if (answers == ProcessLife::kSuspect) return LostWorker("WORKER_SUSPECT");
  // What the worker that computes still owes would come as late as its reports. The one that
  // answers notices that it is gone.
  if (!attempt.worked && !route.together() &&
      parts_.roster.LifeOf(route.computes) == ProcessLife::kSuspect) {
    return LostWorker("PREFILL_SUSPECT");
  }
  return absl::OkStatus();
}

void GenerateCall::OnTick() {
  absl::MutexLock lock(&mutex_);
  CheckReader(parts_.clock.SinceStart());
  const absl::Duration now = parts_.awake.SinceStart();
  std::vector<std::pair<int, absl::Status>> lost;
  for (const auto& [stream, attempt] : attempts_) {
    absl::Status checked = CheckStream(attempt, now);
    if (!checked.ok()) lost.emplace_back(stream, std::move(checked));
  }
  for (const auto& [stream, error] : lost) {
    if (sink_ == nullptr) return;
    BATON_REQUEST_LOG(Warning, request_id_, trace_.context())
        << "leaves worker " << attempts_.at(stream).route.answers.address << " after "
        << usage_.generated_tokens() << " tokens: " << ErrorReason(error);
    OnAttemptLost(stream, error);
  }
  if (sink_ != nullptr && first_) OpenFirst();
  if (sink_ != nullptr && !waiting_.empty()) OpenWaiting();
  if (sink_ != nullptr) SendHeartbeat();
}

}  // namespace baton::router
