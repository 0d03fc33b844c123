#include "common/worker/submission_limit.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/worker/throughput.h"

namespace baton::worker {

absl::Status SubmissionLimit::Reserve(int64_t tokens, bool continuation) {
  absl::MutexLock lock(&mutex_);
  if (draining_) {
    return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                     absl::StrCat("this ", worker_, " worker drains"));
  }
  const Load pending = {queue_.requests + posted_.requests, queue_.tokens + posted_.tokens};
  const int64_t bound_factor = continuation ? 2 : 1;
  if (pending.requests > 0 && (pending.requests >= bound_factor * bounds_.requests ||
                               pending.tokens + tokens > bound_factor * bounds_.tokens)) {
    return WithRetryAfter(
        MakeError(
            absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
            absl::StrCat(pending.requests, " requests of ", pending.tokens, " tokens wait for the ",
                         worker_, " worker, its bounds are ", bound_factor * bounds_.requests,
                         " and ", bound_factor * bounds_.tokens)),
        RetryAfter(tokens, tokens_per_second_));
  }
  ++posted_.requests;
  posted_.tokens += tokens;
  return absl::OkStatus();
}

void SubmissionLimit::SetDraining(bool draining) {
  absl::MutexLock lock(&mutex_);
  draining_ = draining;
}

void SubmissionLimit::OnQueued(int64_t tokens) {
  absl::MutexLock lock(&mutex_);
  ++handled_.requests;
  handled_.tokens += tokens;
  BATON_CHECK_LE(handled_.requests, posted_.requests);
}

void SubmissionLimit::Update(const Load& queue, std::optional<double> tokens_per_second) {
  absl::MutexLock lock(&mutex_);
  posted_.requests -= handled_.requests;
  posted_.tokens -= handled_.tokens;
  handled_ = Load();
  queue_ = queue;
  tokens_per_second_ = tokens_per_second;
}

}  // namespace baton::worker
