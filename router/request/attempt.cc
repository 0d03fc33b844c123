#include "router/request/attempt.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/error.h"
#include "router/request/worker_error.h"

namespace baton::router {
namespace {

void AddTimings(const internal::v1::DecodeTimings& more, internal::v1::DecodeTimings* sum) {
  sum->set_queue_ms(sum->queue_ms() + more.queue_ms());
  sum->set_prefill_ms(sum->prefill_ms() + more.prefill_ms());
  sum->set_kv_transfer_ms(sum->kv_transfer_ms() + more.kv_transfer_ms());
}

}  // namespace

void RetryState::OnTokens() {
  losses.Clear();
  drains = 0;
  refusals = 0;
  ForgetWorkers();
}

void RetryState::ForgetWorkers() {
  avoid.clear();
  lost.clear();
  failed.clear();
}

int64_t Attempt::OnMessage(const internal::v1::DecodeResponse& response, absl::Duration now) {
  heard = true;
  hold.reset();
  last_message = now;
  if (response.has_timings()) timings = response.timings();
  if (!response.has_usage()) return 0;
  cached_tokens = response.usage().cached_prompt_tokens();
  return response.usage().kv_bytes() - std::exchange(kv_bytes, response.usage().kv_bytes());
}

RetryState Attempt::PastAfter(const absl::Status& error, Blame blame, const WorkerSigns& signs,
                              absl::Duration now) const {
  RetryState next = past;
  next.continued = next.continued || token_messages > 0;
  next.reason = ErrorReason(error);
  AddTimings(timings, &next.timings);
  next.avoid.push_back(route.answers.incarnation());
  next.failed.push_back(route);
  if (IsRefusal(error)) {
    ++next.refusals;
  } else {
    next.lost_at = now;
    // A pair whose two workers live has lost nothing: they could not do it together.
    const bool looks_dead = absl::c_any_of(
        Suspects(blame), [&signs](const WorkerTarget& worker) { return signs.LooksDead(worker); });
    next.lost_worker = next.lost_worker || blame != Blame::kPair || looks_dead;
    if (next.reason == "DRAINING") {
      ++next.drains;
    } else {
      next.losses.Add(LossAfter(error, blame, signs, now));
      next.losses.Settle(signs, now);
    }
  }
  const int computed_by = route.together() ? kNoWorker : route.computes.worker;
  if (blame == Blame::kAnswers || next.reason == "WORKER_EXPIRED" ||
      next.reason == "WORKER_SUSPECT") {
    // The worker that computed did its part, and has the prompt: it is the best to ask again.
    next.lost.push_back(route);
    next.warm_worker = token_messages > 0 ? computed_by : kNoWorker;
  } else if (worked) {
    next.warm_worker = computed_by;  // the worker that answers drains, for example
  } else if (!route.together()) {
    next.avoid.push_back(route.computes.incarnation());
  }
  return next;
}

Loss Attempt::LossAfter(const absl::Status& error, Blame blame, const WorkerSigns& signs,
                        absl::Duration now) const {
  Loss loss;
  loss.at = now;
  // A process that ends as it receives the request sends no message before. A process that was
  // silent for longer than kAnswerTime had the request in its queue.
  const bool ran = heard || now - sent_at_awake <= kAnswerTime;
  loss.ran = ran && ErrorReason(error) != "STALE_EPOCH";  // the request met another process
  std::vector<WorkerTarget> suspects = Suspects(blame);
  for (WorkerTarget& worker : suspects) {
    const bool sudden = !IsSilence(error) && signs.SilenceOf(worker.worker) <= kSuddenWithin;
    loss.suspects.push_back({std::move(worker), sudden});
  }
  return loss;
}

std::vector<WorkerTarget> Attempt::Suspects(Blame blame) const {
  std::vector<WorkerTarget> suspects = {route.answers};
  if (blame != Blame::kAnswers && !route.together()) {
    suspects.push_back(route.computes);
  }
  return suspects;
}

}  // namespace baton::router
