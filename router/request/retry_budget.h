// Bounds the retries of the router as a whole, so that retries do not overload a sick cluster. A
// token bucket that is filled by requests and not by time: it allows a share of the present load.
//
// Streams that are lost with a dead worker are not charged: each is continued once per death, so
// the requests in flight bound their number. A stream may break before the death of its worker is
// known. Its retry is charged then, and the charge is given back when the death is known (OnDeath).
#ifndef BATON_ROUTER_REQUEST_RETRY_BUDGET_H_
#define BATON_ROUTER_REQUEST_RETRY_BUDGET_H_

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/fleet/worker.h"

namespace baton::router {

// How much later than a broken stream the death may become known: a silent worker expires after
// 6 s, and a draining worker ends its streams a moment before its process ends.
inline constexpr absl::Duration kProofWithin = absl::Seconds(10);

// Counted in sequences: a request for n choices adds n times the share, and a retry of all of them
// costs n. Thread-safe.
class RetryBudget {
 public:
  struct Limits {
    double share = 0.1;     // retries per sequence asked for, in the long run
    double reserve = 32;    // at the start, so that a quiet cluster can retry, too
    double capacity = 128;  // the most that a time without retries saves up
  };
  // The newest charges are remembered; older ones are not given back.
  static constexpr size_t kMaxCharges = 4096;

  // REQUIRES: nothing is negative.
  explicit RetryBudget(const Limits& limits);

  void OnRequest(int sequences);
  // All or nothing.
  bool TryTake(int sequences);
  // So many sequences were taken, and then not used.
  void GiveBack(int sequences);

  // So many of the sequences taken were for streams that the death of one of `suspects` would
  // explain.
  void Charged(int sequences, std::vector<Incarnation> suspects, absl::Duration now);
  // Gives back the charges of the last kProofWithin for streams on this process. Returns how many
  // sequences.
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
