#include "common/worker/intake.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/worker/throughput.h"

namespace baton::worker {

absl::Status Intake::Enter(int64_t tokens, bool continuation) {
  absl::MutexLock lock(&mutex_);
  if (draining_) {
    return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                     absl::StrCat("this ", worker_, " worker is shutting down"));
  }
  const Load inside = {queue_.requests + posted_.requests, queue_.tokens + posted_.tokens};
  const int64_t rooms = continuation ? 2 : 1;
  if (inside.requests > 0 && (inside.requests >= rooms * bounds_.requests ||
                              inside.tokens + tokens > rooms * bounds_.tokens)) {
    return WithRetryAfter(
        MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                  absl::StrCat(inside.requests, " requests of ", inside.tokens,
                               " tokens wait for the ", worker_, " worker, its bounds are ",
                               rooms * bounds_.requests, " and ", rooms * bounds_.tokens)),
        RetryAfter(tokens, tokens_per_second_));
  }
  ++posted_.requests;
  posted_.tokens += tokens;
  return absl::OkStatus();
}

void Intake::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

void Intake::Taken(int64_t tokens) {
  absl::MutexLock lock(&mutex_);
  ++taken_.requests;
  taken_.tokens += tokens;
  BATON_CHECK_LE(taken_.requests, posted_.requests);
}

void Intake::Settle(const Load& queue, std::optional<double> tokens_per_second) {
  absl::MutexLock lock(&mutex_);
  posted_.requests -= taken_.requests;
  posted_.tokens -= taken_.tokens;
  taken_ = Load();
  queue_ = queue;
  tokens_per_second_ = tokens_per_second;
}

}  // namespace baton::worker
