#include "router/request/retry_ledger.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/error.h"
#include "router/fleet/roster.h"
#include "router/options.h"
#include "router/request/worker_error.h"

namespace baton::router {
namespace {

// The pause before a full or draining worker is asked again; it doubles with each refusal, up to a
// bound.
constexpr absl::Duration kFullWorkerPause = absl::Milliseconds(200);
constexpr int kMaxPauseDoublings = 3;
// So long after a pause, this process has noticed which connections did not outlast it.
constexpr absl::Duration kLossesAfterPause = absl::Seconds(1);

bool AnyLooksDead(const std::vector<WorkerTarget>& suspects, const WorkerSigns& signs) {
  return absl::c_any_of(suspects,
                        [&signs](const WorkerTarget& worker) { return signs.LooksDead(worker); });
}

absl::Status BudgetExhausted() {
  return WithRetryAfter(
      MakeError(absl::StatusCode::kUnavailable, "RETRY_BUDGET_EXHAUSTED",
                "the request was lost, though its worker lives, and so were too many others"),
      absl::Seconds(1));
}

}  // namespace

RetryContext RetryContextOf(const RouterParts& parts) {
  return {parts.retry_budget, parts.metrics, parts.roster,
          absl::Milliseconds(parts.options.failover_wait_ms)};
}

Blame BlameNow(const Clock& awake, Blame blame) {
  return awake.SincePause() <= kLossesAfterPause ? Blame::kNone : blame;
}

void RetryLedger::Count(const StreamEnd& end, int* count) const {
  if (*count == 0 || end.sent_at >= ended_at_) ++*count;
}

void RetryLedger::OnEnd(const StreamEnd& end, int sequences, bool unclear,
                        const WorkerSigns& signs) {
  error_ = end.error;
  Avoid(end.suspects.front().incarnation());
  pause_ = kFullWorkerPause;
  bool at_once = false;
  if (IsRefusal(end.error)) {
    Count(end, &refusals_);
    pause_ *= 1 << std::min(refusals_ - 1, kMaxPauseDoublings);
    // After a second refusal in a row, all workers are likely full.
    at_once = refusals_ == 1;
    // The pauses bound the retries of a request that waits for room.
    if (!MayWait()) debts_.push_back({sequences, {}});
  } else {
    lost_at_ = end.at;
    // A pair whose two workers live has lost nothing: they could not do it together.
    lost_worker_ = lost_worker_ || end.blame != Blame::kPair || end.suspects.size() == 1 ||
                   AnyLooksDead(end.suspects, signs);
    if (!IsLoss(end.error)) {
      Count(end, &drains_);
      // After a second drain, the router knows a moment later which workers are left.
      at_once = drains_ == 1;
    } else {
      Count(end, &losses_);
      debts_.push_back({sequences, end.suspects});
      // The second stream in a row ended before its first message, as if several workers were gone:
      // the next one is kept for a worker that is known to live.
      const bool unheard = losses_ > 1 && end.blame == Blame::kAnswers && !end.heard;
      at_once = !unheard && !unclear;
      pause_ = at_once ? absl::ZeroDuration() : kSameWorkerPause;
    }
  }
  ended_at_ = end.at;
  if (!at_once) not_before_ = std::max(not_before_, end.at + pause_);
}

void RetryLedger::OnProgress() {
  begun_ = true;
  losses_ = drains_ = refusals_ = 0;
}

void RetryLedger::Ask(RouteRequest* wanted) const {
  wanted->avoid = avoided_;
  wanted->avoided_prefill_may_do = refused();
  wanted->may_refuse = !begun_ && losses_ + drains_ == 0;
  wanted->after_loss = lost_worker_ || losses_ > 0;
}

void RetryLedger::AvoidNoneAfterPause(absl::Duration now) {
  if (now - ended_at_ >= kSameWorkerPause) AvoidNone();
}

void RetryLedger::Pay(absl::Span<RetryLedger* const> ledgers, bool any_ready,
                      const RetryContext& context, absl::Duration now) {
  std::vector<RetryLedger*> owing;
  int sequences = 0;
  for (RetryLedger* ledger : ledgers) {
    ledger->DropDebtsOfDead(context);
    if (!any_ready || !ledger->Due(now) || ledger->debts_.empty()) continue;
    owing.push_back(ledger);
    for (const Debt& debt : ledger->debts_) sequences += debt.sequences;
  }
  const bool paid = context.budget.TryTake(sequences);
  for (RetryLedger* ledger : owing) {
    ledger->paid_ = paid;
    if (paid) {
      ledger->unpaid_since_.reset();
    } else if (!ledger->unpaid_since_) {
      ledger->unpaid_since_ = now;
    }
  }
}

void RetryLedger::DropDebtsOfDead(const RetryContext& context) {
  int orphaned = 0;
  const auto drop = [&](const Debt& debt) {
    const bool dead = AnyLooksDead(debt.suspects, context.signs);
    if (dead) orphaned += debt.sequences;
    return dead;
  };
  debts_.erase(std::remove_if(debts_.begin(), debts_.end(), drop), debts_.end());
  if (orphaned > 0) context.metrics.OrphanedByDeath(orphaned);
  if (debts_.empty()) unpaid_since_.reset();
}

void RetryLedger::OnOpened(const RetryContext& context, absl::Duration now) {
  for (const Debt& debt : std::exchange(debts_, {})) {
    if (debt.suspects.empty()) continue;
    std::vector<Incarnation> processes;
    for (const WorkerTarget& worker : debt.suspects) processes.push_back(worker.incarnation());
    context.budget.Charged(debt.sequences, processes, now);
    for (const WorkerTarget& worker : debt.suspects) {
      // The worker may have been found dead before the charge was recorded.
      if (!context.signs.LooksDead(worker)) continue;
      context.metrics.OrphanedByDeath(context.budget.OnDeath(worker.incarnation(), now));
    }
  }
  paid_ = false;
  StopWaiting();
}

void RetryLedger::OnNotOpened(const RetryContext& context, absl::Duration now) {
  if (std::exchange(paid_, false)) {
    for (const Debt& debt : debts_) context.budget.GiveBack(debt.sequences);
  }
  not_before_ = std::max(not_before_, ended_at_ + pause_);
}

void RetryLedger::OnNoWorker(absl::Duration now, absl::Status why) {
  if (!no_worker_since_) no_worker_since_ = now;
  no_worker_ = std::move(why);
}

void RetryLedger::StopWaiting() {
  unpaid_since_.reset();
  no_worker_since_.reset();
}

absl::Status RetryLedger::Over(const RetryContext& context, absl::Duration now) const {
  // Nothing has been sent to the client of such a request, so it can try again itself.
  const bool refused_new = IsRefusal(error_) && !MayWait();
  if (refused_new && refusals_ > 1) return error_;
  if (no_worker_since_ && now - *no_worker_since_ >= context.failover_wait) {
    if (error_.ok()) return no_worker_;
    return LostWorker(absl::IsUnavailable(error_) ? ErrorReason(error_) : "WORKER_LOST");
  }
  if (!unpaid_since_ || (!refused_new && now - *unpaid_since_ < context.failover_wait)) {
    return absl::OkStatus();
  }
  context.metrics.RetryBudgetExhausted();
  return refused_new ? error_ : BudgetExhausted();
}

}  // namespace baton::router
