// The part of GenerateCall that waits: for a worker to go on with, for room on those that are
// there, for the retry budget; and tells the client meanwhile that its stream lives.
#include "absl/algorithm/container.h"
#include "common/base/error.h"
#include "router/request/generate_call.h"
#include "router/request/worker_error.h"

namespace baton::router {
namespace {

// Of the client's stream.
constexpr absl::Duration kHeartbeat = absl::Seconds(1);

}  // namespace

void GenerateCall::FindWorkers() {
  const absl::Duration now = parts_.clock.SinceStart();
  // Without one, hundreds that wait cost nothing but this look.
  const bool survivor = parts_.membership.AnyDecodeWorkerReady();
  const bool paid = PayForThoseDue(survivor, now);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Past& past = it->attempt.past;
    if (now - past.lost_at >= kSameWorkerPause) {
      past.lost.clear();
      past.avoid.clear();
      past.failed.clear();
    }
    bool alone = !survivor;
    const bool owes = !it->suspects.empty();
    if (survivor && now >= it->not_before && (paid || !owes)) {
      if (past.refusals > 0) past.failed.clear();  // what was full may have room now
      const int count = Sequences(it->attempt);
      const absl::Status opened = OpenAgain(it->attempt);
      if (opened.ok()) {
        if (owes) NoteCharge(count, it->suspects);
        it = waiting_.erase(it);
        continue;
      }
      if (owes) parts_.retry_budget.GiveBack(count);
      // Those that are ready may all be of another model.
      alone = ErrorReason(opened) == "NO_WORKER" && past.lost.empty();
    }
    if (!alone) {
      it->alone_since.reset();
    } else if (!it->alone_since) {
      it->alone_since = now;
    }
    ++it;
  }
  if (const absl::Status over = WaitIsOver(); !over.ok()) Fail(over);
}

// Takes from the budget, all or nothing, for those that may ask a worker now; for those whose
// worker has died meanwhile it need not.
bool GenerateCall::PayForThoseDue(bool survivor, absl::Duration now) {
  int due = 0;
  for (Waiting& one : waiting_) {
    if (one.suspects.empty()) continue;
    if (AnyLooksDead(one.suspects)) {
      parts_.metrics.OrphanedByDeath(Sequences(one.attempt));
      one.suspects.clear();
      one.unpaid_since.reset();
    } else if (survivor && now >= one.not_before) {
      due += Sequences(one.attempt);
    }
  }
  if (due == 0) return true;
  const bool paid = parts_.retry_budget.TryTake(due);
  for (Waiting& one : waiting_) {
    if (paid) {
      one.unpaid_since.reset();
    } else if (!one.suspects.empty() && now >= one.not_before && !one.unpaid_since) {
      one.unpaid_since = now;
    }
  }
  return paid;
}

// What the client is told when something has waited for too long; it goes with all that waits.
absl::Status GenerateCall::WaitIsOver() {
  if (waiting_.empty()) return absl::OkStatus();
  // No stream is there that would end with the deadline.
  if (parts_.clock.Now() >= deadline_) return DeadlinePassed();
  const absl::Duration now = parts_.clock.SinceStart();
  const absl::Duration bound = absl::Milliseconds(parts_.options.failover_wait_ms);
  for (const Waiting& one : waiting_) {
    if (one.alone_since && now - *one.alone_since >= bound) {
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

void GenerateCall::SayAlive() {
  const absl::Duration now = parts_.clock.SinceStart();
  if (!first_token_at_ || now - last_sent_at_ < kHeartbeat) return;
  // Those of the first stream have tokens: one without is a stream that was opened after a loss.
  const Attempt* paused = waiting_.empty() ? nullptr : &waiting_.front().attempt;
  for (const auto& [stream, attempt] : attempts_) {
    if (attempt.token_messages == 0) paused = &attempt;
  }
  if (paused == nullptr) return;
  // Nothing comes of a choice after its end.
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
