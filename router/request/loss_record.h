// The losses in a row of a request, of some of its choices or of one scored item, and what they say
// of the request itself.
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
#include "router/routing/route.h"

namespace baton::router {

// A request fails with this many losses in a row whose workers live.
inline constexpr int kMaxLosses = 3;
// A request fails with this many deaths in a row of processes that ran it.
inline constexpr int kMaxDeaths = 3;
// A worker that was silent for longer before its stream broke did not end at that moment: workers
// report every second.
inline constexpr absl::Duration kSuddenWithin = absl::Seconds(2);

// A worker that has let a request in sends a message within this time.
inline constexpr absl::Duration kAnswerTime = absl::Seconds(1);
// The router waits so long before it opens a lost stream anew on the same worker, where there is no
// other. By then the cause has passed, or the worker is known to be gone.
inline constexpr absl::Duration kSameWorkerPause = absl::Milliseconds(500);

// How a stream to a worker ended before its work was done. Times are those of RouterParts::awake.
struct StreamEnd {
  // `error` is what FromWorker or LostWorker says (worker_error.h).
  StreamEnd(absl::Status error, const Route& route, bool heard, absl::Duration sent_at,
            absl::Duration at);

  absl::Status error;
  Blame blame;
  // The workers whose death would explain the end; the first is the one that was called.
  std::vector<WorkerTarget> suspects;
  bool heard;  // the worker had sent a message
  absl::Duration sent_at;
  absl::Duration at;
};

// Unsynchronized.
class LossRecord {
 public:
  // Refusals, and a drain's, are no losses: they are not added.
  void Add(const StreamEnd& end, const WorkerSigns& signs);
  // Takes the deaths into account that explain losses. One that becomes known more than
  // kProofWithin after a loss does not explain it.
  void Settle(const WorkerSigns& signs, absl::Duration now);
  // A token has come: forgets all losses.
  void Clear() { *this = LossRecord(); }

  // Settles, and returns an error once there are too many losses: the last one's, or WorkersDied.
  // While the record is unclear, it decides kSameWorkerPause after the last loss.
  absl::Status Verdict(const WorkerSigns& signs, absl::Duration now);
  // Deaths that may still become known would make kMaxDeaths: the next attempt waits until then.
  bool unclear() const;

  int deaths() const { return deaths_; }  // processes that ended while they ran the request
  int unproven() const { return static_cast<int>(unproven_.size()); }  // losses without a death

 private:
  struct Suspect {
    WorkerTarget worker;
    bool sudden = false;  // the worker was heard of within kSuddenWithin before the loss
  };
  struct Loss {
    absl::Status error;
    std::vector<Suspect> suspects;
    bool ran = false;  // the request was running there, as far as the router knows
    absl::Duration at;
  };

  int deaths_ = 0;
  std::vector<Loss> unproven_;
};

// INTERNAL: kMaxDeaths is reached. Such a request is not to be tried again.
absl::Status WorkersDied();

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_LOSS_RECORD_H_
