// A circuit breaker for pairs of workers, and for workers, on which requests failed lately.
//
// A prefill and a decode worker that cannot reach each other may work well with all others, so
// failures are counted by pair. Only a worker that fails with several partners is avoided itself.
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
#include "router/fleet/worker.h"

namespace baton::router {

inline constexpr int kFailuresToAvoid = 2;
// Failures further apart than this are not "in a row".
inline constexpr absl::Duration kFailureMemory = absl::Seconds(30);
inline constexpr absl::Duration kFirstAvoidance = absl::Seconds(2);
inline constexpr absl::Duration kLongestAvoidance = absl::Seconds(30);
// While a pair is tried, other requests avoid it for at least this long: longer than a stream may
// be silent (Options::stall_timeout_ms), or a second request would be lost like the first.
inline constexpr absl::Duration kTryMayTake = absl::Seconds(10);

// Workers are numbers, as in Roster. A pair is the worker that computes a prompt and the one that
// answers; they may be the same, which is no pair. Unsynchronized.
class PairHealth {
 public:
  // `clock` must outlive it.
  explicit PairHealth(const Clock& clock) : clock_(clock) {}

  // A request failed between the two.
  void OnPairFailed(int computes, int answers);
  // The worker did not answer the router.
  void OnWorkerFailed(int worker);
  void OnPairWorked(int computes, int answers);

  bool WorkerUsable(int worker) const;
  // No worker is avoided.
  bool all_usable() const;
  // By the failures of the pair alone: see WorkerUsable for those of its workers.
  bool PairUsable(int computes, int answers) const;
  // A request is sent to the pair. If the pair was avoided until now, the request is its try: other
  // requests avoid the pair until the try has ended, or for as long again, kTryMayTake at least. Of
  // an avoided pair, only the failures of tries count: one event fails all requests that are under
  // way, and is one failure.
  void OnChosen(int computes, int answers);

  // There is another process at the worker's address.
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
