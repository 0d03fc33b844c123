// The part of GenerateCall that opens streams to workers, detects their loss, and retries
// elsewhere.
//
// Before the first token a retry is invisible to the client: the request is sent again as it was.
// After it, the tokens so far are sent behind the prompt, and the new worker continues from there.
// Tokens depend on the request alone, the random numbers of a token on its position, so the client
// sees one text. Each of n choices is continued by its own stream, because each has come to another
// length; a beam search starts again, and results that the client has are not sent twice.
//
// The bounds are those of retry_ledger.h and loss_record.h. A request that has lost a worker waits
// for another one: for --failover-wait-ms while none is ready, and until its own deadline for room
// on the workers that are, with pauses between retries.
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
#include "router/request/retry_ledger.h"
#include "router/request/worker_error.h"
#include "router/routing/decision_log.h"
#include "router/routing/route_planner.h"

namespace baton::router {
namespace {

namespace decode_pb = ::baton::internal::v1;

// A request that no worker lets in for so long keeps no new ones out any more: smaller requests may
// fit where it does not.
constexpr absl::Duration kLongestHold = absl::Seconds(30);

}  // namespace

absl::Status GenerateCall::Open(Attempt& attempt) {
  decode_pb::DecodeRequest request =
      attempt.whole ? answer_->Whole() : answer_->RestOf(attempt.choices.front());
  RouteRequest wanted;
  wanted.model_fingerprint = request.model_fingerprint();
  wanted.keys = prepared_.keys;
  wanted.prompt_tokens = request.tokens_size();
  wanted.LimitTo(wanted.prompt_tokens, prepared_.block_tokens);
  wanted.max_answer_tokens = request.max_tokens();
  attempt.past.retries.Ask(&wanted);
  wanted.warm_worker = attempt.past.warm_worker;
  wanted.only = only_;
  wanted.failed = attempt.past.failed;
  wanted.lost = attempt.past.lost;
  wanted.explain = true;
  wanted.pool = PoolFor(class_, parts_.options, prepared_.decode.prompt_tokens());
  wanted.spill = class_.spill;
  wanted.ttft_slo = class_.ttft_slo;
  const absl::Duration begin = parts_.clock.SinceStart();
  if (only_.worker != kNoWorker) {
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
  request.set_continuation(attempt.past.retries.MayWait());
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
  if (attempt.route.answers.takes_fixed_tokens) {
    request.mutable_fixed_tokens()->Swap(request.mutable_tokens());
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

// The retry is paid for, or free.
absl::Status GenerateCall::OpenAgain(Attempt& attempt) {
  const std::string reason = ErrorReason(attempt.past.retries.error());
  const absl::Duration now = parts_.awake.SinceStart();
  if (absl::Status opened = Open(attempt); !opened.ok()) {
    attempt.past.retries.OnNotOpened(retry_, now);
    return opened;
  }
  attempts_.rbegin()->second.past.retries.OnOpened(retry_, now);
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
  const absl::Duration now = parts_.awake.SinceStart();
  const StreamEnd end = attempt.EndWith(error, now);
  parts_.planner.OnRouteFailed(attempt.route, BlameNow(parts_.awake, end.blame));
  if (!AnotherPairMayDo(error, attempt.past.retries.MayWait())) return Fail(error);
  std::vector<Attempt> next = AttemptsAfter(attempt, end);
  if (sink_ == nullptr || next.empty()) return;
  const absl::Status over = next.front().past.losses.Verdict(parts_.roster, now);
  if (!over.ok()) return Fail(over);
  RetryElsewhere(std::move(next));
}

std::vector<Attempt> GenerateCall::AttemptsAfter(const Attempt& attempt, const StreamEnd& end) {
  const bool together = !first_token_at_ || answer_->is_search();
  std::vector<Attempt> next;
  for (int choice : attempt.choices) {
    if (answer_->finished(choice)) continue;
    if (auto ended = answer_->EndIfComplete(choice)) {
      Send(*std::move(ended), attempt, /*end_reported=*/false);
      if (sink_ == nullptr) return {};
      continue;
    }
    if (next.empty() || !together) next.emplace_back().whole = together;
    next.back().choices.push_back(choice);
  }
  for (Attempt& one : next) one.past = attempt.PastAfter(end, Sequences(one), parts_.roster);
  return next;
}

void GenerateCall::HoldRoom(Attempt* attempt) const {
  const RetryLedger& retries = attempt->past.retries;
  // Other refusals (a tenant's limit, a deadline that cannot be met) are not for want of room.
  if (!retries.MayWait() || ErrorReason(retries.error()) != "QUEUE_FULL") return;
  const absl::Duration until = std::min(parts_.awake.SinceStart() + retries.pause() + kAnswerTime,
                                        retries.lost_at() + kLongestHold);
  attempt->hold.emplace(&parts_.continuations, until);
}

void GenerateCall::RetryElsewhere(std::vector<Attempt> next) {
  const absl::Duration now = parts_.awake.SinceStart();
  std::vector<RetryLedger*> ledgers;
  for (Attempt& attempt : next) ledgers.push_back(&attempt.past.retries);
  // All or nothing: an answer of which some choices cannot continue fails.
  RetryLedger::Pay(ledgers, /*any_ready=*/true, retry_, now);
  if (const absl::Status over = ledgers[0]->Over(retry_, now); !over.ok()) return Fail(over);
  const bool any_ready = parts_.roster.AnyDecodeWorkerReady();
  for (Attempt& attempt : next) {
    RetryLedger& retries = attempt.past.retries;
    HoldRoom(&attempt);
    if (retries.MayOpen(now)) {
      if (OpenAgain(attempt).ok()) continue;
      // Nothing has been sent, and no worker was lost: the client can try again itself. Then there
      // is only one attempt.
      if (!retries.MayWait()) return Fail(retries.error());
    }
    if (!any_ready) retries.OnNoWorker(now);
    waiting_.push_back({std::move(attempt), ContinuationLine::Place(&parts_.continuations)});
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
