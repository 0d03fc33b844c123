// The part of GenerateCall that waits: for a ready worker, for room on one, for the retry budget.
// Meanwhile the client gets heartbeats. A new request waits for a ready worker alone, and only
// while one is likely to come back: see Roster::Awaited.
#include "absl/algorithm/container.h"
#include "common/base/error.h"
#include "router/fleet/roster.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/generate_call.h"
#include "router/request/retry_budget.h"
#include "router/request/worker_error.h"

namespace baton::router {
namespace {

// Of the client's stream.
constexpr absl::Duration kHeartbeat = absl::Seconds(1);

}  // namespace

void GenerateCall::OpenFirst() {
  const absl::Status opened = Open(*first_);
  if (opened.ok()) {
    first_.reset();
    parts_.metrics.Dispatched(parts_.clock.SinceStart() - received_, prepared_.decode.priority());
    return;
  }
  if (ErrorReason(opened) != "NO_WORKER" || !parts_.roster.Awaited(v1::WORKER_ROLE_DECODE)) {
    return Fail(opened);
  }
  if (parts_.clock.Now() >= deadline_) return Fail(DeadlinePassed());
  const absl::Duration now = parts_.awake.SinceStart();
  if (!first_waits_since_) first_waits_since_ = now;
  const absl::Duration bound = absl::Milliseconds(parts_.options.failover_wait_ms);
  if (now - *first_waits_since_ >= bound) Fail(opened);
}

void GenerateCall::OpenWaiting() {
  const absl::Duration now = parts_.awake.SinceStart();
  if (const absl::Status over = CheckLosses(now); !over.ok()) return Fail(over);
  // Hundreds of requests may wait: while no worker is ready, each costs no more than this.
  const bool any_ready = parts_.roster.AnyDecodeWorkerReady();
  const bool paid = PayForDueRetries(any_ready, now);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    RetryState& past = it->attempt.past;
    if (now - past.lost_at >= kSameWorkerPause) past.ForgetWorkers();
    bool no_worker = !any_ready;
    const bool owes = !it->suspects.empty();
    if (any_ready && now >= it->not_before && (paid || !owes)) {
      if (past.refusals > 0) past.failed.clear();  // full workers may have room now
      const int count = Sequences(it->attempt);
      const absl::Status opened = OpenAgain(it->attempt);
      if (opened.ok()) {
        if (owes) RecordCharge(count, it->suspects);
        it = waiting_.erase(it);
        continue;
      }
      if (owes) parts_.retry_budget.GiveBack(count);
      // The ready workers may all be of another model.
      no_worker = ErrorReason(opened) == "NO_WORKER" && past.lost.empty();
    }
    if (!no_worker) {
      it->no_worker_since.reset();
    } else if (!it->no_worker_since) {
      it->no_worker_since = now;
    }
    ++it;
  }
  if (const absl::Status over = CheckWaitBounds(); !over.ok()) Fail(over);
}

// A death may have become known since the attempt began to wait.
absl::Status GenerateCall::CheckLosses(absl::Duration now) {
  for (WaitingAttempt& one : waiting_) {
    LossRecord& losses = one.attempt.past.losses;
    losses.Settle(parts_.roster, now);
    if (losses.deaths() >= kMaxDeaths) return WorkersDied();
    if (losses.unproven() >= kMaxLosses && now >= one.not_before) return one.error;
  }
  return absl::OkStatus();
}

// Charges the budget, all or nothing, for the attempts that may ask a worker now. An attempt whose
// worker has died meanwhile is free.
bool GenerateCall::PayForDueRetries(bool any_ready, absl::Duration now) {
  int due = 0;
  for (WaitingAttempt& one : waiting_) {
    if (one.suspects.empty()) continue;
    if (AnyLooksDead(one.suspects)) {
      parts_.metrics.OrphanedByDeath(Sequences(one.attempt));
      one.suspects.clear();
      one.unpaid_since.reset();
    } else if (any_ready && now >= one.not_before) {
      due += Sequences(one.attempt);
    }
  }
  if (due == 0) return true;
  const bool paid = parts_.retry_budget.TryTake(due);
  for (WaitingAttempt& one : waiting_) {
    if (paid) {
      one.unpaid_since.reset();
    } else if (!one.suspects.empty() && now >= one.not_before && !one.unpaid_since) {
      one.unpaid_since = now;
    }
  }
  return paid;
}

// One attempt that waits for too long fails the request.
absl::Status GenerateCall::CheckWaitBounds() {
  if (waiting_.empty()) return absl::OkStatus();
  // There is no stream that would end with the deadline.
  if (parts_.clock.Now() >= deadline_) return DeadlinePassed();
  const absl::Duration now = parts_.awake.SinceStart();
  const absl::Duration bound = absl::Milliseconds(parts_.options.failover_wait_ms);
  for (const WaitingAttempt& one : waiting_) {
    if (one.no_worker_since && now - *one.no_worker_since >= bound) {
      return absl::IsUnavailable(one.error) ? LostWorker(ErrorReason(one.error))
                                            : LostWorker("WORKER_LOST");
    }
    if (one.unpaid_since && now - *one.unpaid_since >= bound) {
      parts_.metrics.RetryBudgetExhausted();
      return WithRetryAfter(
          MakeError(absl::StatusCode::kUnavailable, "RETRY_BUDGET_EXHAUSTED",
                    "the request's stream was lost, though its worker lives, and so were those of "
                    "too many others"),
          absl::Seconds(1));
    }
  }
  return absl::OkStatus();
}

void GenerateCall::SendHeartbeat() {
  const absl::Duration now = parts_.awake.SinceStart();
  if (!first_token_at_ || now - last_sent_at_ < kHeartbeat) return;
  // After the first token, an attempt without tokens is one that was opened after a loss.
  const Attempt* paused = waiting_.empty() ? nullptr : &waiting_.front().attempt;
  for (const auto& [stream, attempt] : attempts_) {
    if (attempt.token_messages == 0) paused = &attempt;
  }
  if (paused == nullptr) return;
  // A choice that has ended gets no more messages.
  const auto open = absl::c_find_if(paused->choices, [this](int choice) {
    mutex_.AssertHeld();
    return !answer_->finished(choice);
  });
  if (open == paused->choices.end()) return;
  v1::GenerateResponse empty;
  empty.set_choice(*open);
  *empty.mutable_usage() = usage_;
  last_sent_at_ = now;
  sink_->Heartbeat(empty);
}

}  // namespace baton::router
