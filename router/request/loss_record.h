// The losses of a request in a row, and what they say of the request itself.
//
// A lost stream whose worker is dead is the worker's fault: it costs the request nothing, however
// often it happens. A lost stream whose worker lives may be the request's or the network's fault:
// kMaxLosses of them are enough. The stream may break before the death is known, so a loss without
// a proof gets one later if its worker is found dead.
//
// A request that ends each process that runs it would take one worker after the other down, so
// kMaxDeaths processes that ended while they ran it, without a token in between, are enough, too. A
// worker that fell silent (it was frozen, or cut off) before its stream broke does not count for
// that: a request ends a process, it does not freeze a machine. Nor does a worker in whose queue
// the request waited.
#ifndef BATON_ROUTER_REQUEST_LOSS_RECORD_H_
#define BATON_ROUTER_REQUEST_LOSS_RECORD_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/fleet/worker.h"
#include "router/fleet/worker_signs.h"

namespace baton::router {

// A request fails with this many losses in a row whose workers live.
inline constexpr int kMaxLosses = 3;
// A request fails with this many deaths in a row of processes that ran it.
inline constexpr int kMaxDeaths = 3;
// A worker that was silent for longer before its stream broke did not end at that moment: workers
// report every second.
inline constexpr absl::Duration kSuddenWithin = absl::Seconds(2);

// A stream that was lost.
struct Loss {
  // A worker whose death would explain it.
  struct Suspect {
    WorkerTarget worker;
    bool sudden = false;  // the worker was heard of within kSuddenWithin before
  };
  std::vector<Suspect> suspects;
  bool ran = false;  // the request was running there, as far as the router knows
  absl::Duration at;
};

// Unsynchronized.
class LossRecord {
 public:
  void Add(Loss loss);
  // Takes the deaths into account that explain losses. One that becomes known more than
  // kProofWithin after a loss does not explain it.
  void Settle(const WorkerSigns& signs, absl::Duration now);
  // A token has come: forgets all losses.
  void Clear() { *this = LossRecord(); }

  int count() const { return count_; }    // all losses
  int deaths() const { return deaths_; }  // processes that ended while they ran the request
  int unproven() const { return static_cast<int>(unproven_.size()); }  // losses without a death
  // Deaths, with those that may still become known. At kMaxDeaths, the next attempt waits until
  // they are known.
  int possible_deaths() const;

 private:
  int count_ = 0;
  int deaths_ = 0;
  std::vector<Loss> unproven_;
};

// INTERNAL: kMaxDeaths is reached. Such a request is not to be tried again.
absl::Status WorkersDied();

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_LOSS_RECORD_H_
