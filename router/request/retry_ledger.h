// The rules by which the router tries again what workers lose or refuse: the choices of a request,
// or the items of a scoring call.
//
// A stream ends too early in one of three ways. A *refusal* of a full worker is no loss: a request
// that no worker has let in yet pays the retry budget for one more try, and the second refusal in a
// row ends it; any other waits for room. A refusal by a worker that *drains* is free, as the router
// soon knows of the drain. Any other end is a *loss*, which the budget pays for unless a suspect
// looks dead, at once or later. Of streams that were open at the same time, one end of a kind
// counts as in a row.
//
// How often a loss may repeat is the LossRecord's to say, which a scoring call keeps for each item.
#ifndef BATON_ROUTER_REQUEST_RETRY_LEDGER_H_
#define BATON_ROUTER_REQUEST_RETRY_LEDGER_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "router/fleet/worker.h"
#include "router/fleet/worker_signs.h"
#include "router/metrics.h"
#include "router/request/loss_record.h"
#include "router/request/retry_budget.h"
#include "router/request/router_parts.h"
#include "router/routing/route.h"

namespace baton::router {

// What retries are paid from and judged by. Everything outlives the ledgers.
struct RetryContext {
  RetryBudget& budget;
  RouterMetrics& metrics;
  const WorkerSigns& signs;
  absl::Duration failover_wait;  // the longest wait for a ready worker, and for the budget
};
RetryContext RetryContextOf(const RouterParts& parts);

// The blame that a route gets for an end now: connections that did not outlast a pause of this
// process broke because of it. `awake`: RouterParts::awake.
Blame BlameNow(const Clock& awake, Blame blame);

// Unsynchronized. A value: each continuation of a lost attempt has a copy. Times are those of
// RouterParts::awake.
class RetryLedger {
 public:
  // A stream has ended before its work was done. Its retry counts for so many `sequences` in the
  // budget. `unclear`: a death that is not known yet decides whether there may be one.
  void OnEnd(const StreamEnd& end, int sequences, bool unclear, const WorkerSigns& signs);
  // A token or a result has come: earlier ends are no longer in a row with later ones.
  void OnProgress();

  // --- The next route.
  // Fills the fields that depend on earlier ends, `failed`, `lost` and `warm_worker` excepted.
  void Ask(RouteRequest* wanted) const;
  // The worker is chosen only where there is no other: those that were called are, for
  // kSameWorkerPause.
  void Avoid(const Incarnation& worker) { avoided_.push_back(worker); }
  void AvoidNone() { avoided_.clear(); }
  void AvoidNoneAfterPause(absl::Duration now);

  // --- The next try.
  // Workers have let the request in before, so it may wait for one.
  bool MayWait() const { return begun_ || lost_worker_; }
  // The pause since the last end is over.
  bool Due(absl::Duration now) const { return now >= not_before_; }
  // Takes from the budget what all of `ledgers` owe that are due, or nothing, and nothing if no
  // worker is ready. First drops the debts for workers that are dead by now.
  static void Pay(absl::Span<RetryLedger* const> ledgers, bool any_ready,
                  const RetryContext& context, absl::Duration now);
  // The retry is due, and paid for or free. After Pay, OnOpened or OnNotOpened follows.
  bool MayOpen(absl::Duration now) const { return Due(now) && (paid_ || debts_.empty()); }
  // The retry has a stream: what was paid is remembered, and given back if a suspect proves dead.
  void OnOpened(const RetryContext& context, absl::Duration now);
  // There was no worker for it: gives back what was paid.
  void OnNotOpened(const RetryContext& context, absl::Duration now);

  // --- The bounds on waiting.
  // No worker is ready, or the planner says `why` there is none.
  void OnNoWorker(absl::Duration now, absl::Status why = absl::OkStatus());
  void OnWorkerReady() { no_worker_since_.reset(); }
  // Nothing waits any more.
  void StopWaiting();
  // An error once there is to be no further try; counts it in the metrics if it is for want of
  // budget.
  absl::Status Over(const RetryContext& context, absl::Duration now) const;

  bool refused() const { return refusals_ > 0; }
  const std::vector<Incarnation>& avoided() const { return avoided_; }
  const absl::Status& error() const { return error_; }  // of the last end
  // How long the next try waits after the last end, where it cannot be made at once.
  absl::Duration pause() const { return pause_; }
  absl::Duration lost_at() const { return lost_at_; }  // the last end that was no refusal

 private:
  // A retry that the budget is to pay for.
  struct Debt {
    int sequences = 0;
    std::vector<WorkerTarget> suspects;  // none for a refusal
  };
  // Counts an end unless its stream was open when the one before it ended.
  void Count(const StreamEnd& end, int* count) const;
  void DropDebtsOfDead(const RetryContext& context);

  int losses_ = 0;  // these three: in a row
  int drains_ = 0;
  int refusals_ = 0;
  bool begun_ = false;  // a token or a result has come
  bool lost_worker_ = false;
  absl::Status error_;
  absl::Duration ended_at_ = -absl::InfiniteDuration();
  absl::Duration lost_at_;
  std::vector<Incarnation> avoided_;
  absl::Duration pause_;
  absl::Duration not_before_;
  std::vector<Debt> debts_;
  bool paid_ = false;  // the budget was charged for `debts_`
  std::optional<absl::Duration> unpaid_since_;
  std::optional<absl::Duration> no_worker_since_;
  absl::Status no_worker_;  // what the planner said
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_RETRY_LEDGER_H_
