// How many retries the router may make as a whole, so that a sick cluster is not stormed by the
// router that wants to help it. A token bucket fed by requests and not by time: what it allows is a
// share of the load there is.
#ifndef BATON_ROUTER_RETRY_BUDGET_H_
#define BATON_ROUTER_RETRY_BUDGET_H_

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace baton::router {

// Counted in sequences: a request for n choices brings n times the share, and sending all of them
// again takes n. Thread-safe.
class RetryBudget {
 public:
  struct Limits {
    double share = 0.1;     // retries per sequence asked for, in the long run
    double reserve = 32;    // there at the start, so that a quiet cluster can retry, too
    double capacity = 128;  // what a long time without a retry can save up
  };

  // REQUIRES: nothing is negative.
  explicit RetryBudget(const Limits& limits)
      : limits_(limits), level_(std::min(limits.reserve, limits.capacity)) {}

  void OnRequest(int sequences) {
    absl::MutexLock lock(&mutex_);
    level_ = std::min(limits_.capacity, level_ + limits_.share * sequences);
  }

  // All or nothing.
  bool TryTake(int sequences) {
    absl::MutexLock lock(&mutex_);
    // A share such as 0.1 is not exact: ten of them must make one.
    if (level_ + 1e-6 < sequences) return false;
    level_ = std::max(0.0, level_ - sequences);
    return true;
  }

  // What was taken and not used after all.
  void GiveBack(int sequences) {
    absl::MutexLock lock(&mutex_);
    level_ = std::min(limits_.capacity, level_ + sequences);
  }

  double level() const {
    absl::MutexLock lock(&mutex_);
    return level_;
  }

 private:
  const Limits limits_;
  mutable absl::Mutex mutex_;
  double level_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_RETRY_BUDGET_H_
