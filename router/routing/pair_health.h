// Which pairs of workers, and which workers, requests have lately failed on: a circuit breaker.
//
// A prefill and a decode worker that cannot reach each other are both well for everyone else, so
// failures are counted by pair. Only a worker that fails with several partners is avoided as such.
//
//   closed ─2 failures in a row─▶ open ─a while─▶ half open: one request tries ─failed─▶ open,
//   longer
//      ◀──────────────────────────worked──────────────────┘
#ifndef BATON_ROUTER_ROUTING_PAIR_HEALTH_H_
#define BATON_ROUTER_ROUTING_PAIR_HEALTH_H_

#include <map>
#include <set>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton::router {

inline constexpr int kFailuresToAvoid = 2;
// Failures further apart than this are not "in a row".
inline constexpr absl::Duration kFailureMemory = absl::Seconds(30);
inline constexpr absl::Duration kFirstAvoidance = absl::Seconds(2);
inline constexpr absl::Duration kLongestAvoidance = absl::Seconds(30);
// How long the others wait at least for the end of a try: longer than a stream may be silent before
// it is left (Options::stall_timeout_ms), or a second request would follow the first into the hole.
inline constexpr absl::Duration kTryMayTake = absl::Seconds(10);

// Workers are numbers, as in Membership; kNoWorker is the prefill worker of a request that the
// decode worker computes alone. Unsynchronized.
inline constexpr int kNoWorker = -1;

class PairHealth {
 public:
  // `clock` must outlive it.
  explicit PairHealth(const Clock& clock) : clock_(clock) {}

  // The two did not get a request done between them.
  void OnPairFailed(int prefill, int decode);
  // The worker itself did not answer, whatever its partner.
  void OnWorkerFailed(int worker);
  // kNoWorker: the decode worker did it alone, and nothing was shown of any pair.
  void OnPairWorked(int prefill, int decode);

  bool WorkerUsable(int worker) const;
  // No worker is avoided, so that they need not be asked one by one.
  bool all_usable() const;
  // Of the pair alone: its workers are judged by WorkerUsable.
  bool PairUsable(int prefill, int decode) const;
  // A request goes there. If the pair was avoided until now, it is the one that tries: the others
  // keep away until it has ended, or for as long again, kTryMayTake at least. Of what is avoided,
  // only the failures of those that try count: one event fails all that was under way, and is one
  // failure.
  void OnChosen(int prefill, int decode);

  // Another process is at the worker's address.
  void Forget(int worker);

 private:
  struct Record {
    int failures = 0;
    bool open = false;
    bool trying = false;  // half open: a request is on its way
    absl::Duration last_failure;
    absl::Duration avoided_until;
    absl::Duration avoidance = kFirstAvoidance;  // the next one
  };

  void CountFailure(Record& record, int failures_to_avoid);
  void CountPartner(int worker, int partner);
  bool Usable(const Record& record) const;
  void Probe(Record& record);

  const Clock& clock_;
  std::map<std::pair<int, int>, Record> pairs_;
  std::map<int, Record> workers_;
  std::map<int, std::set<int>> partners_;  // that a worker failed with since it last worked
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_PAIR_HEALTH_H_
