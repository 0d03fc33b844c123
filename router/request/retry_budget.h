// How many retries the router may make as a whole, so that a sick cluster is not stormed by the
// router that wants to help it. A token bucket fed by requests and not by time: what it allows is a
// share of the load there is.
//
// Streams that a dead worker had are no part of that: each is continued once for each death, so
// their number is bounded by the requests in flight. A stream may end before it is known that its
// worker has died. Its continuation is charged then, and given back with the proof (OnDeath).
#ifndef BATON_ROUTER_REQUEST_RETRY_BUDGET_H_
#define BATON_ROUTER_REQUEST_RETRY_BUDGET_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/fleet/membership.h"

namespace baton::router {

// How late the proof of a death may come: silence takes 6 s to be one, and a worker that drains
// ends its streams a moment before its process ends.
inline constexpr absl::Duration kProofWithin = absl::Seconds(10);

// Counted in sequences: a request for n choices brings n times the share, and sending all of them
// again takes n. Thread-safe.
class RetryBudget {
 public:
  struct Limits {
    double share = 0.1;     // retries per sequence asked for, in the long run
    double reserve = 32;    // there at the start, so that a quiet cluster can retry, too
    double capacity = 128;  // what a long time without a retry can save up
  };
  // Charges remembered at most; of more, the oldest are not given back.
  static constexpr size_t kMaxCharges = 4096;

  // REQUIRES: nothing is negative.
  explicit RetryBudget(const Limits& limits);

  void OnRequest(int sequences);
  // All or nothing.
  bool TryTake(int sequences);
  // What was taken and not used after all.
  void GiveBack(int sequences);

  // So many of those taken went for streams that were lost with one of `suspects`.
  void Charged(int sequences, std::vector<Incarnation> suspects, absl::Duration now);
  // Gives back what the last kProofWithin charged for streams on this process. Returns how many
  // sequences that were.
  int OnDeath(const Incarnation& dead, absl::Duration now);

  double level() const;

 private:
  struct Charge {
    int sequences = 0;
    std::vector<Incarnation> suspects;
    absl::Duration at;
  };
  void Forget(absl::Duration now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  mutable absl::Mutex mutex_;
  double level_ ABSL_GUARDED_BY(mutex_);
  std::deque<Charge> charges_ ABSL_GUARDED_BY(mutex_);  // oldest first
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_RETRY_BUDGET_H_
