// Keeps prefixes in the caches of prefill workers, or of decode workers where no prefill worker is
// listed: computes them there when an operator asks for it, and again on workers that join or
// restart.
//
// A prefix is computed by a request for one token that is bound to the worker and has a low
// priority. The router alone remembers the prefixes: replicas of it do not share them, and a
// restart forgets them. With fewer replicas than workers, the workers are those of the highest
// random weight (Thaler & Ravishankar, 1996), so that routers choose the same ones.
#ifndef BATON_ROUTER_REQUEST_PREFIX_WARMER_H_
#define BATON_ROUTER_REQUEST_PREFIX_WARMER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/admin.pb.h"
#include "router/fleet/worker.h"
#include "router/request/access.h"
#include "router/request/call_watch.h"
#include "router/request/router_parts.h"

namespace baton::router {

// Thread-safe. Works on the thread of the CallWatch that it is added to.
class PrefixWarmer final : public WatchedCall {
 public:
  // Computations at a time; more wait.
  static constexpr int kMaxRunning = 4;
  // Before a prefix is tried again on a worker where it failed; doubled with each failure.
  static constexpr absl::Duration kFirstPause = absl::Seconds(1);
  static constexpr absl::Duration kLongestPause = absl::Minutes(1);
  static constexpr absl::Duration kDeadline = absl::Minutes(2);  // of one computation

  // `parts` must outlive it.
  PrefixWarmer(RouterParts& parts, int max_prefixes);
  ~PrefixWarmer() override;

  // Checks and tokenizes the prompt, remembers it, and has it computed. `done` gets the prefix once
  // each of its workers has computed it or has failed to, or at `deadline`, whichever is first.
  // Fails as a Generate request does; RESOURCE_EXHAUSTED, TOO_MANY_WARM_PREFIXES; UNAVAILABLE,
  // DRAINING, after Stop. Tokenizes, so do not call it on an event thread.
  using Done = std::function<void(absl::StatusOr<v1::WarmPrefix>)>;
  void Warm(const v1::WarmPrefixRequest& request, absl::Time deadline, Done done);

  std::vector<v1::WarmPrefix> List() const;
  // NOT_FOUND, UNKNOWN_PREFIX.
  absl::Status Drop(const std::string& id);

  // Takes the ends of computations, starts those that are due, and answers calls of Warm.
  void OnTick() override;
  // Ends computations and answers all calls of Warm. Nothing is started from then on.
  void Stop();

 private:
  class Computation;
  // What is to be called without the lock.
  using Calls = std::vector<std::function<void()>>;

  // A worker that is to have a prefix.
  struct Place {
    Incarnation process;
    v1::WarmedWorker result;  // of the last computation
    std::shared_ptr<Computation> running;
    bool outdated = false;  // `running` was started for what the prefix was before
    bool tried = false;
    bool warm = false;
    int failures = 0;  // in a row
    absl::Duration next_at;
  };
  struct Waiter {
    absl::Time deadline;
    Done done;
  };
  struct Prefix {
    v1::WarmPrefix description;  // without its workers
    v1::GenerateRequest request;
    Caller caller;
    std::vector<Place> places;
    std::vector<Waiter> waiters;
  };
  struct Ready {
    Incarnation process;
    std::string address;
  };

  absl::StatusOr<Prefix> Prepare(const v1::WarmPrefixRequest& request) const;
  absl::Status Remember(Prefix prefix, Waiter waiter);
  // Those that are ready and compute prompts.
  std::vector<Ready> ReadyWorkers() const;
  void ChoosePlaces(Prefix& prefix) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Harvest(Place& place, Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Begin(Prefix& prefix, Place& place, Calls* calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(Prefix& prefix, Calls* calls) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static v1::WarmPrefix Describe(const Prefix& prefix);

  RouterParts& parts_;
  const size_t max_prefixes_;
  mutable absl::Mutex mutex_;
  std::map<std::string, Prefix> prefixes_ ABSL_GUARDED_BY(mutex_);  // by id
  std::vector<Ready> ready_ ABSL_GUARDED_BY(mutex_);
  int64_t ready_version_ ABSL_GUARDED_BY(mutex_) = -1;  // of the roster
  int running_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_PREFIX_WARMER_H_
