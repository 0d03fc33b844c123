#include "router/request/attempt.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/error.h"
#include "router/request/usage_sum.h"

namespace baton::router {
namespace {

void AddTimings(const internal::v1::DecodeTimings& more, internal::v1::DecodeTimings* sum) {
  sum->set_queue_ms(sum->queue_ms() + more.queue_ms());
  sum->set_prefill_ms(sum->prefill_ms() + more.prefill_ms());
  sum->set_kv_transfer_ms(sum->kv_transfer_ms() + more.kv_transfer_ms());
}

// Of a count that has been `*before` at most, and whose maximum is remembered there: messages of
// several choices may come in another order than their counts.
int64_t Increase(int64_t now, int64_t* before) {
  const int64_t increase = std::max<int64_t>(now - *before, 0);
  *before = std::max(*before, now);
  return increase;
}

}  // namespace

void RetryState::OnTokens() {
  retries.OnProgress();
  retries.AvoidNone();
  losses.Clear();
  lost.clear();
  failed.clear();
}

void RetryState::ForgetWorkers(absl::Duration now) {
  retries.AvoidNoneAfterPause(now);
  if (now - retries.lost_at() >= kSameWorkerPause) {
    lost.clear();
    failed.clear();
  }
  if (retries.refused()) failed.clear();  // full workers may have room now
}

void Attempt::OnMessage(const internal::v1::DecodeResponse& response, absl::Duration now,
                        v1::Usage* sum) {
  heard = true;
  hold.reset();
  last_message = now;
  if (response.has_timings()) timings = response.timings();
  if (!response.has_usage()) return;
  const internal::v1::DecodeUsage& usage = response.usage();
  cached_tokens = usage.cached_prompt_tokens();
  sum->set_kv_bytes(sum->kv_bytes() + Increase(usage.kv_bytes(), &kv_bytes));
  sum->set_draft_tokens(
      SaturatedSum(sum->draft_tokens(), Increase(usage.draft_tokens(), &draft_tokens)));
  sum->set_accepted_draft_tokens(
      SaturatedSum(sum->accepted_draft_tokens(),
                   Increase(usage.accepted_draft_tokens(), &accepted_draft_tokens)));
}

RetryState Attempt::PastAfter(const StreamEnd& end, int sequences, const WorkerSigns& signs) const {
  RetryState next = past;
  next.continued = next.continued || token_messages > 0;
  AddTimings(timings, &next.timings);
  next.failed.push_back(route);
  next.losses.Add(end, signs);
  next.losses.Settle(signs, end.at);
  next.retries.OnEnd(end, sequences, next.losses.unclear(), signs);
  const std::string reason = ErrorReason(end.error);
  const int computed_by = route.together() ? kNoWorker : route.computes.worker;
  if (end.blame == Blame::kAnswers || reason == "WORKER_EXPIRED" || reason == "WORKER_SUSPECT") {
    // The worker that computed did its part, and has the prompt: it is the best to ask again.
    next.lost.push_back(route);
    next.warm_worker = token_messages > 0 ? computed_by : kNoWorker;
  } else if (worked) {
    next.warm_worker = computed_by;  // the worker that answers drains, for example
  } else if (!route.together()) {
    next.retries.Avoid(route.computes.incarnation());
  }
  return next;
}

}  // namespace baton::router
