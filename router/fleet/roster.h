// Who the workers are, and whether each may get requests: the set that discovery lists, and the
// Watch protocol of each worker.
//
//   CONNECTING ─card + snapshot─▶ READY ─silent too long─▶ SUSPECT ─silent 6 s─▶ EXPIRED
//        ▲  └─another model─▶ REFUSED   ◀────any event────┘                          │
//        └──────────────── stream lost, tried again ─────────────────────────────────┘
//
// A worker is silent too long if its next sign of life is so late that this is suspicious by how
// its signs came before (SignsOfLife), or if no report has come for 3 s. Signs of life are reports
// and the messages of requests' streams.
#ifndef BATON_ROUTER_FLEET_ROSTER_H_
#define BATON_ROUTER_FLEET_ROSTER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/internal/v1/worker.pb.h"
#include "baton/v1/admin.pb.h"
#include "common/base/clock.h"
#include "router/fleet/model_info.h"
#include "router/fleet/signs_of_life.h"
#include "router/fleet/worker.h"
#include "router/fleet/worker_signs.h"
#include "router/prefix_index/prefix_index.h"

namespace baton::router {

// A worker that sends no report is SUSPECT after the first time, and EXPIRED after the second, at
// the latest.
inline constexpr absl::Duration kSuspectAfter = absl::Seconds(3);
inline constexpr absl::Duration kExpireAfter = absl::Seconds(6);
// After a pause of this process, so much time of its clock is enough to hear from each worker that
// lives, or to connect to it again.
inline constexpr absl::Duration kHearAgain = absl::Seconds(5);

// Numbers that a Roster gives, those of departing workers included.
inline constexpr int kMaxWorkers = PrefixIndex::kMaxWorkers;

// Learns what a Roster learns. All methods but OnTick are called under the roster's lock, in the
// order of the events: they must be quick and must not call the roster.
class RosterObserver {
 public:
  virtual ~RosterObserver() = default;
  // All numbers are below `count`. Never less than before.
  virtual void OnWorkerCount(int count) {}
  // The worker may get requests. Its observer may keep the target's hold until the next of the
  // three calls below.
  virtual void OnReady(const WorkerTarget& target, const internal::v1::WorkerCard& card) {}
  // It has been silent for suspiciously long.
  virtual void OnSuspect(int worker) {}
  // The worker gets no new requests.
  virtual void OnUnavailable(int worker) {}
  // What was known of the process at the worker's address holds no longer. Unavailable, too.
  virtual void OnForgotten(int worker) {}
  // `at`: by the roster's clock.
  virtual void OnLoad(int worker, const internal::v1::LoadReport& load, absl::Duration at) {}
  // From Roster::Tick.
  virtual void OnTick(absl::Duration now) {}
};

// What a router knows of a process to which it has sent a request.
enum class ProcessLife {
  kLives,    // alive, as far as is known
  kSuspect,  // suspect, while another worker of the role is ready and has just been heard
  kGone,     // expired or refused, or another process is at its address
};

// True if the end of a Watch stream means that the worker does not accept this router's secret.
// Only another configuration helps. A failed handshake of TLS has no code of gRPC's: it is
// UNAVAILABLE like a host that does not answer, and only its text says why.
bool IsAccessRefused(const absl::Status& why);

// Thread-safe. A worker's number stays the same for as long as the worker is listed or referred to
// (WorkerHold); it is used again afterwards.
class Roster final : public WorkerSigns {
 public:
  // The workers report what they have cached into `index`. Silence counts by `clock`, an AwakeClock
  // outside of tests, or a pause of the router would be blamed on all workers. Both must outlive
  // the roster.
  Roster(uint64_t tokenizer_fingerprint, PrefixIndex& index, const Clock& clock);

  // Before the first worker is listed. It must outlive the roster's last call.
  void SetObserver(RosterObserver* observer);
  // From now on, `on_death` is called whenever LooksDead turns true for a process, perhaps more
  // than once: under the lock, so it must be quick and must not call back. Before the first stream
  // is started.
  void SetOnDeath(std::function<void(const Incarnation&)> on_death);
  // The same for a worker that turns EXPIRED, once for each time that it was established. A worker
  // that drained is not reported: its end was planned.
  void SetOnExpired(std::function<void(v1::WorkerRole)> on_expired);

  // --- The listed workers (roster_listing.cc).

  // From now on, these workers and no others get requests. Workers that stay listed keep their
  // state. One that is no longer listed gets no new request, and is watched until its last request
  // has ended; listed again before that, it gets requests again. RESOURCE_EXHAUSTED, changing
  // nothing, if there were more than kMaxWorkers; INVALID_ARGUMENT if a worker is listed twice.
  absl::Status SetWorkers(absl::Span<const WorkerAddress> listed);
  // The numbers of all workers that are to be watched.
  std::vector<int> Watched() const;
  // Grows whenever Watched() does.
  int64_t roster_version() const;
  // Workers that are no longer listed and have no request left: their streams can be ended.
  std::vector<int> Departed() const;
  // Call when the stream of a departed worker has ended: forgets the worker and frees its number.
  // False if the worker has been listed again meanwhile, and is to be watched again.
  bool Release(int worker);

  // --- The Watch stream of a worker. An error ends the stream, and is logged.

  // A new stream. Silence counts from here, unless the worker was established before: then from its
  // last event, however many streams are tried.
  void OnStreamStarted(int worker);
  // FAILED_PRECONDITION if the worker is of another model, KV layout, tokenizer or role than this
  // cluster, or has other generation defaults: the worker is then REFUSED, with both values in its
  // detail.
  absl::Status OnEvent(int worker, const internal::v1::WatchResponse& event);
  // REFUSED if the worker does not accept this router, see IsAccessRefused. Either way it gets no
  // new request until another stream is established. What it has cached stays in the index: the
  // same epoch may come back.
  void OnStreamLost(int worker, const absl::Status& why);

  // Checks for silence. Returns the workers expired by this call, whose streams are to be ended.
  std::vector<int> Tick();

  // --- For requests.

  // Nothing before the first worker has sent its card.
  std::optional<ModelInfo> model() const;
  // What is known of a process that has a stream of a request or computes the prompt for it.
  ProcessLife LifeOf(const WorkerTarget& target) const;
  // The same; `heard_at`: when the process last sent something on the stream, a sign of life.
  ProcessLife LifeOf(const WorkerTarget& target, absl::Duration heard_at);
  // Whether more than one lost stream speaks against the process: its Watch stream is gone or
  // silent (SUSPECT), or another process has its address. False again once the worker reports.
  // False for kNoWorker.
  bool LooksDead(const WorkerTarget& target) const override;
  // How long the worker has given no sign of life, on its Watch stream or on those of requests.
  absl::Duration SilenceOf(int worker) const override;
  // The silences of all workers, by their numbers.
  std::vector<absl::Duration> Silences() const;
  // Some decode worker is READY. Takes no lock.
  bool AnyDecodeWorkerReady() const { return ready_decode_workers_ > 0; }
  // True if a worker with the capability is likely to be READY within moments, though none may be
  // now, so that a new request should wait: one is SUSPECT, or was connected when this process was
  // paused and has not been heard since.
  bool Awaited(v1::WorkerCapability capability) const;
  // How suspicious the worker's silence is: see SignsOfLife::Suspicion.
  double Suspicion(int worker) const;
  // A decode worker is ready, and either a prefill worker is or none is to be waited for: listed
  // prefill workers get a moment after the router's start to report. After a pause of this process,
  // workers that it has not heard yet count as ready.
  bool Ready() const;
  // UNAVAILABLE: says how many decode workers are listed, and in which states.
  absl::Status NoDecodeWorker() const;

  // --- For operators.
  std::vector<v1::WorkerStatus> List() const;
  std::vector<v1::WorkerLoad> Loads() const;
  v1::WorkerStatus Status(int worker) const;
  // The worker with this address or worker_id. NOT_FOUND (UNKNOWN_WORKER), or UNAVAILABLE
  // (NO_WORKER) if it has not sent its card.
  absl::StatusOr<WorkerTarget> Find(absl::string_view name) const;
  int worker_count() const;  // all numbers are below it
  // Grows whenever the state of any worker changes.
  int64_t state_version() const { return state_version_; }
  std::string address(int worker) const;

 private:
  struct Worker {
    WorkerHold hold;  // null: the number is free
    bool listed = false;
    std::string address;
    v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
    v1::WorkerState state = v1::WORKER_STATE_CONNECTING;
    std::string detail = "not reached yet";
    std::optional<internal::v1::WorkerCard> card;  // while established
    std::string refused_id;                        // worker_id of the last card that was refused
    internal::v1::LoadReport load;
    std::optional<absl::Duration> load_at;  // when `load` arrived
    // MeanLinkRate of the last report that has links.
    double link_bytes_per_second = 0;
    absl::Duration last_event;              // or the start of a stream that nothing has come on yet
    SignsOfLife signs;
    bool stream_open = false;
    // Received on this stream.
    bool card_seen = false;
    bool snapshot_begun = false;
    bool snapshot_done = false;
    uint64_t sequence = 0;  // of the last delta applied

    // REQUIRES: established, and listed or in use.
    WorkerTarget Target() const {
      return {*hold, address, card->worker_id(), card->epoch(), hold, card->takes_fixed_tokens()};
    }
  };

  absl::Status OnCard(int worker, const internal::v1::WorkerCard& card)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckCard(int worker, const internal::v1::WorkerCard& card) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckSameModel(int worker, const internal::v1::WorkerCard& card) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BeginSnapshot(int worker, const internal::v1::CacheSnapshot& snapshot)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status BeginDelta(int worker, const internal::v1::CacheDelta& delta)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::WorkerStatus StatusOf(int worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int TakeNumber() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(const WorkerAddress& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetListed(int worker, bool listed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetServingState(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  ProcessLife LifeOfLocked(const WorkerTarget& target) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // True if the worker was connected when this process was paused, and has not been heard since.
  bool Unheard(const Worker& worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Expire(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReportDeath(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetState(int worker, v1::WorkerState state, std::string detail)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t tokenizer_fingerprint_;
  PrefixIndex& index_;  // locks itself
  const Clock& clock_;
  const absl::Duration started_;

  RosterObserver no_observer_;
  mutable absl::Mutex mutex_;
  RosterObserver* observer_ ABSL_GUARDED_BY(mutex_) = &no_observer_;
  std::vector<Worker> workers_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> free_ ABSL_GUARDED_BY(mutex_);  // numbers below worker_count()
  int64_t roster_version_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> state_version_{0};
  std::atomic<int> ready_decode_workers_{0};
  std::function<void(const Incarnation&)> on_death_ ABSL_GUARDED_BY(mutex_);
  std::function<void(v1::WorkerRole)> on_expired_ ABSL_GUARDED_BY(mutex_);
  // At the last Tick, some worker of the role was READY and not silent for long.
  bool hears_prefill_ ABSL_GUARDED_BY(mutex_) = false;
  bool hears_decode_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_ROSTER_H_
