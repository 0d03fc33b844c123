// The part of GenerateCall that waits: for a ready worker, for room on one, for the retry budget.
// Meanwhile the client gets heartbeats. A new request waits for a ready worker alone, and only
// while one is likely to come back: see Roster::Awaited.
#include "absl/algorithm/container.h"
#include "common/base/error.h"
#include "router/fleet/roster.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/generate_call.h"
#include "router/request/retry_ledger.h"
#include "router/request/worker_error.h"

namespace baton::router {
namespace {

// A client whose answer pauses gets an empty message so often.
constexpr absl::Duration kHeartbeat = absl::Seconds(1);

}  // namespace

void GenerateCall::OpenFirst() {
  const absl::Status opened = Open(*first_);
  if (opened.ok()) {
    first_.reset();
    parts_.metrics.Dispatched(parts_.clock.SinceStart() - received_, prepared_.decode.priority());
    return;
  }
  if (ErrorReason(opened) != "NO_WORKER" ||
      !parts_.roster.Awaited(v1::WORKER_CAPABILITY_ANSWER)) {
    return Fail(opened);
  }
  if (parts_.clock.Now() >= deadline_) return Fail(DeadlinePassed());
  const absl::Duration now = parts_.awake.SinceStart();
  RetryLedger& retries = first_->past.retries;
  retries.OnNoWorker(now, opened);
  if (const absl::Status over = retries.Over(retry_, now); !over.ok()) Fail(over);
}

void GenerateCall::OpenWaiting() {
  // There is no stream that would end with the deadline.
  if (parts_.clock.Now() >= deadline_) return Fail(DeadlinePassed());
  const absl::Duration now = parts_.awake.SinceStart();
  // Hundreds of requests may wait: while no worker is ready, each costs no more than this.
  const bool any_ready = parts_.roster.AnyDecodeWorkerReady();
  std::vector<RetryLedger*> ledgers;
  for (WaitingAttempt& one : waiting_) {
    RetryState& past = one.attempt.past;
    // A death may have become known since the attempt began to wait.
    const absl::Status over = past.losses.Verdict(parts_.roster, now);
    if (!over.ok()) return Fail(over);
    past.ForgetWorkers(now);
    ledgers.push_back(&past.retries);
  }
  RetryLedger::Pay(ledgers, any_ready, retry_, now);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    RetryState& past = it->attempt.past;
    bool no_worker = !any_ready;
    if (any_ready && past.retries.MayOpen(now)) {
      const absl::Status opened = OpenAgain(it->attempt);
      if (opened.ok()) {
        it = waiting_.erase(it);
        continue;
      }
      // The ready workers may all be of another model.
      no_worker = ErrorReason(opened) == "NO_WORKER" && past.lost.empty();
    }
    if (no_worker) {
      past.retries.OnNoWorker(now);
    } else {
      past.retries.OnWorkerReady();
    }
    ++it;
  }
  for (const WaitingAttempt& one : waiting_) {
    const absl::Status over = one.attempt.past.retries.Over(retry_, now);
    if (!over.ok()) return Fail(over);
  }
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
