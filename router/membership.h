// What the router knows of its workers: who they are, how busy, what they have cached, and whether
// they may get work. Fed by Watch streams (see worker_watch.h), asked once per request.
//
//   CONNECTING ─card + snapshot─▶ READY ─silent 3 s─▶ SUSPECT ─silent 6 s─▶ EXPIRED
//        ▲  └─another model─▶ REFUSED   ◀──any event──┘                        │
//        └──────────────── stream lost, tried again ───────────────────────────┘
#ifndef BATON_ROUTER_MEMBERSHIP_H_
#define BATON_ROUTER_MEMBERSHIP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/internal/v1/worker.pb.h"
#include "baton/v1/admin.pb.h"
#include "common/base/clock.h"
#include "common/base/random_id.h"
#include "common/kv/prefix_key.h"
#include "router/decayed_mean.h"
#include "router/decision.h"
#include "router/dispatched_prefixes.h"
#include "router/fleet_load.h"
#include "router/pair_health.h"
#include "router/policy.h"
#include "router/prefix_index.h"

namespace baton::router {

inline constexpr absl::Duration kSuspectAfter = absl::Seconds(3);
inline constexpr absl::Duration kExpireAfter = absl::Seconds(6);

// What all established workers agree on. The first one sets it; when none is left, the next does.
struct ModelInfo {
  uint64_t fingerprint = 0;
  uint64_t kv_layout_fingerprint = 0;
  int block_tokens = 0;
  int max_model_len = 0;  // the smallest of the workers'
  std::vector<int32_t> eos_token_ids;
  internal::v1::GenerationDefaults defaults;
};

// While anyone has it, the number of its worker is given to no other one.
using WorkerHold = std::shared_ptr<const int>;

// One process among those that have a worker's number one after the other.
struct Incarnation {
  int worker = kNoWorker;
  uint64_t epoch = 0;

  friend bool operator==(const Incarnation& a, const Incarnation& b) {
    return a.worker == b.worker && a.epoch == b.epoch;
  }
};

struct WorkerTarget {
  int worker = kNoWorker;
  std::string address;
  std::string worker_id;
  uint64_t epoch = 0;
  WorkerHold hold;

  Incarnation incarnation() const { return {worker, epoch}; }
};

// Where a worker is to be found, and as what.
struct WorkerAddress {
  v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
  std::string address;  // host:port

  friend bool operator==(const WorkerAddress& a, const WorkerAddress& b) {
    return a.role == b.role && a.address == b.address;
  }
  friend bool operator<(const WorkerAddress& a, const WorkerAddress& b) {
    return std::tie(a.role, a.address) < std::tie(b.role, b.address);
  }
};

// Numbers that a Membership gives, those of workers that are on their way out included.
inline constexpr int kMaxWorkers = PrefixIndex::kMaxWorkers;

struct Route {
  WorkerTarget prefill;  // kNoWorker: the decode worker computes the prompt itself
  WorkerTarget decode;
  int matched_blocks = 0;  // on the prefill worker
  std::string decision;
  // When its first token is expected, from now on: the queue before the prompt, and its own
  // computing. 0 while no worker has told what that takes.
  absl::Duration predicted_ttft;
  std::shared_ptr<Decision> why;  // null unless asked for
  int64_t dispatch = 0;           // its number, 0 if it was only asked for
};

struct RouteOptions {
  // Requests whose first token is expected later are refused. 0: none.
  absl::Duration ttft_slo;
  // From a prefill to a decode worker, until transfers have shown it.
  double kv_bytes_per_second = 1e9;
  // For the times to retry of those refused. A simulation has its own.
  std::function<uint64_t()> random = &RandomId64;
};

struct RouteRequest {
  uint64_t model_fingerprint = 0;
  absl::Span<const kv::PrefixKey> keys;
  int prompt_tokens = 0;
  int64_t max_answer_tokens = 0;  // still to generate, at the most; 0: no bound
  // Workers of failed attempts. A decode worker of them is used again only where there is no other.
  // A worker that has been started again since is another one.
  std::vector<Incarnation> avoid;
  // What to do where all prefill workers are avoided: use one nevertheless, as it was only busy, or
  // let the decode worker compute the prompt.
  bool avoided_prefill_may_do = false;
  // Has just computed this prompt, whether or not it has reported its blocks yet.
  int warm_prefill = kNoWorker;
  // Not to be chosen again: the pair of each of these, and the decode worker of each of those, by
  // epoch. UNAVAILABLE, with nothing noted, if nothing else is left.
  absl::Span<const Route> failed;
  absl::Span<const Route> lost;
  // Fill Route::why.
  bool explain = false;
  // False: only asks. Nothing is noted, and nothing need be sent.
  bool dispatch = true;
  // RouteOptions::ttft_slo holds for it: nothing has been sent to the client yet.
  bool may_refuse = false;
};

// Whose fault it is that a request failed on a pair.
enum class Blame {
  kNobody,        // e.g. a worker that is draining
  kPair,          // the two could not do it together
  kDecodeWorker,  // it did not answer the router
};

// Thread-safe. Workers have numbers, small and stable: of those that the constructor is given,
// prefill addresses first, then decode addresses. The number of a worker that has gone is used
// again once nothing refers to it.
class Membership {
 public:
  // `policy` and `clock` must outlive it. REQUIRES: no address twice, at most kMaxWorkers.
  Membership(const std::vector<std::string>& prefill_addresses,
             const std::vector<std::string>& decode_addresses, uint64_t tokenizer_fingerprint,
             Policy& policy, const Clock& clock, const RouteOptions& options = RouteOptions());

  // --- Who there is (membership_roster.cc).

  // From now on, these and no others get work. Those that are here already stay as they are. One
  // that is no longer listed takes nothing new, and is watched until its last request has left it;
  // listed again before that, it goes on. RESOURCE_EXHAUSTED, changing nothing, if there were more
  // than kMaxWorkers; INVALID_ARGUMENT if a worker is listed twice.
  absl::Status SetWorkers(absl::Span<const WorkerAddress> listed);
  // The numbers of all that are to be watched.
  std::vector<int> Watched() const;
  // Grows whenever Watched() does.
  int64_t roster_version() const;
  // No longer listed, and no request refers to them: their streams can be ended.
  std::vector<int> Departed() const;
  // Call when the stream of a departed worker has ended: forgets it and frees its number. False if
  // it has been listed again meanwhile, and is to be watched again.
  bool Release(int worker);

  // --- From the Watch stream of a worker. An error ends the stream, and is logged.

  // A new stream. Silence counts from here.
  void OnStreamStarted(int worker);
  // FAILED_PRECONDITION if the worker is of another model, KV layout, tokenizer or role than this
  // cluster: it is then REFUSED, with both values in its detail.
  absl::Status OnEvent(int worker, const internal::v1::WatchResponse& event);
  // Gets no new work until another stream is established. What is cached there is kept until then:
  // the same epoch may come back.
  void OnStreamLost(int worker, const absl::Status& why);

  // Judges silence. Returns the workers expired by this call, whose streams are to be ended.
  std::vector<int> Tick();

  // From now on, `on_death` is called whenever LooksDead turns true for a process, perhaps more
  // than once: under the lock, so it must be quick and must not call back. Before the first stream
  // is started.
  void SetOnDeath(std::function<void(const Incarnation&)> on_death);

  // --- For requests.

  // Nothing before the first worker has introduced itself.
  std::optional<ModelInfo> model() const;
  // A pair by the policy, noted as dispatched; pairs that have failed lately are passed over. A
  // decode worker alone if no prefill worker is usable; if several are there and all are suspect,
  // it is the router that hears nothing, and they are used. UNAVAILABLE with what is wrong with the
  // decode workers if none is ready; RESOURCE_EXHAUSTED, with the time to retry, if no worker is
  // expected to answer within the SLO.
  absl::StatusOr<Route> Choose(const RouteRequest& request);
  // Its prompt is computed: whoever did it is free for the next.
  void OnFirstToken(const Route& route);
  // How it went there.
  void OnRouteFailed(const Route& route, Blame blame);
  // `kv_moved`: from the one to the other. Else the decode worker had all it needed, or computed
  // it.
  void OnRouteWorked(const Route& route, bool kv_moved);
  // A request was answered in full; its KV took so long on the way, beyond what was hidden behind
  // computing (0 bytes: none was moved).
  void OnAnswered(int64_t generated_tokens, int64_t kv_bytes, absl::Duration kv_transfer);
  // Whether the process that a request was sent to may still be there: it has not expired, and no
  // other one is at its address. Suspicion alone does not count.
  bool MayLive(const WorkerTarget& target) const;
  // Whether more than one lost stream speaks against the process: its Watch stream is gone or
  // silent (SUSPECT), or another process has its address. A worker that comes back to life turns
  // false again. False for kNoWorker.
  bool LooksDead(const WorkerTarget& target) const;
  // Some decode worker takes new work. Without the lock: for requests that wait and ask often.
  bool AnyDecodeWorkerReady() const { return ready_decode_workers_ > 0; }
  // A decode worker is ready, and either a prefill worker is or none is to be waited for: those
  // that are listed get a moment after the router's start to introduce themselves.
  bool Ready() const;

  // --- For operators.
  std::vector<v1::WorkerStatus> List() const;
  int worker_count() const;  // all numbers are below it
  // Grows whenever the state of any worker changes.
  int64_t state_version() const { return state_version_; }
  std::string address(int worker) const;
  absl::string_view policy_name() const { return policy_.name(); }

 private:
  struct Worker {
    WorkerHold hold;  // null: the number is free
    bool listed = false;
    std::string address;
    v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
    v1::WorkerState state = v1::WORKER_STATE_CONNECTING;
    std::string detail = "not reached yet";
    std::optional<internal::v1::WorkerCard> card;  // while established
    internal::v1::LoadReport load;
    absl::Duration last_event;
    bool stream_open = false;
    // What has come on this stream.
    bool card_seen = false;
    bool snapshot_begun = false;
    bool snapshot_done = false;
    uint64_t sequence = 0;  // of the last delta applied
  };

  // What was chosen, as it was seen.
  struct Pair {
    std::optional<Candidate> prefill;
    Candidate decode;
    absl::string_view decision;
    Pricing pricing = {};

    const Candidate& computes() const { return prefill ? *prefill : decode; }
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
  int TakeNumber() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Add(const WorkerAddress& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetListed(int worker, bool listed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetServingState(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropKnowledge(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellDeath(int worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetState(int worker, v1::WorkerState state, std::string detail)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Span<const Candidate> Candidates(v1::WorkerRole role, bool doubted,
                                         const RouteRequest& request, absl::Span<const int> depths,
                                         std::vector<Candidate>* kept)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  RouteQuery QueryOf(const RouteRequest& request, int decode_worker) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Pair ChoosePair(const RouteQuery& query, absl::Span<const Candidate> prefill,
                  absl::Span<const Candidate> decode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckSlo(const RouteRequest& request, absl::Span<const Candidate> prefill,
                        absl::Span<const Candidate> decode, const Pair& pair) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Done(const Route& route) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  int64_t NoteDispatch(const RouteQuery& query, const Pair& pair)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Decision> Explain(const RouteQuery& query, const Route& route, const Pair& pair,
                                    absl::Span<const Candidate> prefill,
                                    absl::Span<const Candidate> decode) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status NoDecodeWorker() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  WorkerTarget Target(int worker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t tokenizer_fingerprint_;
  const Clock& clock_;
  const RouteOptions options_;

  // Have locks of their own. Under mutex_, or without it.
  PrefixIndex index_;
  DispatchedPrefixes dispatched_;

  mutable absl::Mutex mutex_;
  Policy& policy_;  // Choose() only under mutex_
  std::vector<Worker> workers_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> free_ ABSL_GUARDED_BY(mutex_);  // numbers below worker_count()
  int64_t roster_version_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> state_version_{0};
  std::atomic<int> ready_decode_workers_{0};
  std::function<void(const Incarnation&)> on_death_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_upkeep_ ABSL_GUARDED_BY(mutex_);
  FleetLoad fleet_ ABSL_GUARDED_BY(mutex_);
  // Of the answers so far, the last ones counting most.
  DecayedMean answer_tokens_ ABSL_GUARDED_BY(mutex_);
  DecayedMean transfer_seconds_ ABSL_GUARDED_BY(mutex_);
  DecayedMean transfer_bytes_ ABSL_GUARDED_BY(mutex_);
  // Of the last decision: kept for their memory.
  std::vector<Candidate> prefill_ ABSL_GUARDED_BY(mutex_);
  std::vector<Candidate> decode_ ABSL_GUARDED_BY(mutex_);
  PairHealth health_ ABSL_GUARDED_BY(mutex_);
  const absl::Duration started_;
};

// "prefill", "decode"; "ready", "suspect", ...: as in logs and metric labels.
absl::string_view RoleName(v1::WorkerRole role);
absl::string_view StateName(v1::WorkerState state);

}  // namespace baton::router

#endif  // BATON_ROUTER_MEMBERSHIP_H_
