// Chooses the prefill and the decode worker of each request: matches the prompt with what workers
// have cached, asks the policy for the cheapest pair, passes over pairs that failed lately, and
// counts what it has sent.
#ifndef BATON_ROUTER_ROUTING_ROUTE_PLANNER_H_
#define BATON_ROUTER_ROUTING_ROUTE_PLANNER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/random_id.h"
#include "router/fleet/roster.h"
#include "router/prefix_index/dispatched_prefixes.h"
#include "router/prefix_index/prefix_index.h"
#include "router/routing/decayed_mean.h"
#include "router/routing/fleet_demand.h"
#include "router/routing/fleet_load.h"
#include "router/routing/link_rates.h"
#include "router/routing/pair_health.h"
#include "router/routing/policy.h"
#include "router/routing/pool_names.h"
#include "router/routing/route.h"

namespace baton::router {

struct RouteOptions {
  // Requests whose first token is expected later are refused. 0: none.
  absl::Duration ttft_slo;
  bool kv_fetch = false;  // name holders of cached KV that the computing worker lacks
  // The rate of a fetch. 0: unknown, so computing is priced. Too high a rate sends prompts to
  // workers that compute what they were to fetch. The rates of links that decode workers report are
  // no guide: they are of the other direction, and perhaps of shared memory.
  double kv_fetch_bytes_per_second = 0;
  // The rate from a prefill to a decode worker, until transfers have been measured.
  double kv_bytes_per_second = 1e9;
  DemandTargets demand;
  // The source of jitter in retry times. A simulation has its own.
  std::function<uint64_t()> random = &RandomId64;
};

// Thread-safe. Observes the roster from its construction on: the roster must outlive it, and must
// not be called any more once it is destroyed.
class RoutePlanner final : public RosterObserver {
 public:
  // All must outlive it. `roster` has no workers yet; `index` is the roster's.
  RoutePlanner(Roster& roster, PrefixIndex& index, Policy& policy, const Clock& clock,
               const RouteOptions& options = RouteOptions());

  // A pair by the policy, or a prefill worker alone, counted as dispatched. Pairs that failed
  // lately are passed over. Without a usable prefill worker, a decode worker alone; if there are
  // several prefill workers and all are suspect, the fault is likely the router's, and one of them
  // is chosen. UNAVAILABLE with the states of the decode workers if none is ready, or none of the
  // pool; RESOURCE_EXHAUSTED, with the time to retry, if no worker is expected to answer within the
  // SLO.
  absl::StatusOr<Route> Choose(const RouteRequest& request);
  // The prompt is computed: its worker is free for the next.
  void OnFirstToken(const Route& route);
  // The request's work on the route is over: done or cancelled. Not to be called after
  // OnRouteFailed.
  void OnRouteEnded(const Route& route);
  // What came of the route.
  void OnRouteFailed(const Route& route, Blame blame);
  // `kv_moved`: from the worker that computes to the one that answers. Else the latter had or
  // computed all that it needed.
  void OnRouteWorked(const Route& route, bool kv_moved);
  // A request was answered in full. Its KV took so long on the way, beyond what was hidden behind
  // computing (0 bytes: none was moved).
  void OnAnswered(int64_t generated_tokens, int64_t kv_bytes, absl::Duration kv_transfer);

  // The time to compute so many prompt tokens behind cached ones on a worker, as estimated. nullopt
  // if no worker has reported its cost.
  std::optional<absl::Duration> PrefillTime(int worker, int tokens, int cached_tokens) const;

  // How many workers the present load wants. `refused`: requests refused for load since the start.
  // Brings it up to date, at most ten times a second.
  Demand UpdateDemand(int64_t refused);

  absl::string_view policy_name() const { return policy_.name(); }

  // From the roster.
  void OnWorkerCount(int count) override;
  void OnReady(const WorkerTarget& target, const internal::v1::WorkerCard& card) override;
  void OnSuspect(int worker) override;
  void OnUnavailable(int worker) override;
  void OnForgotten(int worker) override;
  void OnLoad(int worker, const internal::v1::LoadReport& load, absl::Duration at) override;
  void OnTick(absl::Duration now) override;

 private:
  struct Worker {
    WorkerTarget target;  // its hold is there while the worker is ready or suspect
    v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
    int block_tokens = 16;
    kv::KvSizes kv;
    int layers = 0;
    bool prefix_caching = false;
    bool scores = false;
    int pool = 0;            // by its number in pools_
    double tier_load_s = 0;  // of a segment in its KV tiers; 0: not measured
  };
  // What workers have of a prompt in their KV tiers, by their reports.
  struct InTiers {
    int segment_tokens = 0;
    std::vector<int> segments;  // by worker
  };
  // The worker, of either role, that has most blocks of the prompt cached, by its own reports. No
  // worker: none has enough.
  struct Held {
    int worker = kNoWorker;
    int blocks = 0;
  };
  static Held HolderOf(const Candidates& prefill, const Candidates& decode,
                       absl::Span<const int> reported);
  // The choice, and its candidates as they were seen.
  struct Pair {
    // The worker that computes the prompt, if it is not `decode`: a prefill worker, or with `lent`
    // a decode worker.
    std::optional<Candidate> prefill;
    Candidate decode;
    absl::string_view decision;
    Pricing pricing = {};
    double hidden_s = 0;  // as in RouteChoice, and so the next ones
    const CostColumn* prefill_costs = nullptr;
    const CostColumn* moved_costs = nullptr;
    const std::vector<double>* decode_costs = nullptr;
    bool lent = false;

    bool prefill_alone() const { return decode.worker == kNoWorker; }
    const Candidate& computes() const { return prefill ? *prefill : decode; }
    const Candidate& answers() const { return prefill_alone() ? *prefill : decode; }
  };

  struct Matched {
    std::vector<int> depths;    // by worker: blocks of the prompt that it has or will have cached
    std::vector<int> reported;  // with kv_fetch: of these, those that it reports
    std::vector<int> ends;      // the different depths that are reported
    InTiers in_tiers;
    std::vector<absl::Duration> silences;  // set after a loss: by worker, since its last message
  };
  struct Chosen {
    bool no_decode_worker = false;  // the rest is not set
    Route route;
    RouteQuery query;
    Pair pair;
  };

  absl::StatusOr<Route> ChooseOf(const RouteRequest& request);
  void Match(const RouteRequest& request, Matched* found) const;
  // Notes nothing.
  absl::StatusOr<Chosen> Decide(const RouteRequest& request, const Matched& matched) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Leaves those of the request's pool in *kept, unless it must spill and may.
  void KeepPool(v1::WorkerRole role, const RouteRequest& request, Candidates* kept) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool MayTake(v1::WorkerRole role, const RouteRequest& request, const Candidates& of, int i) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status NoDecodeWorker(const std::string& pool) const;
  std::vector<v1::WorkerRole> SpilledOf(const RouteRequest& request, const Route& route) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Collect(v1::WorkerRole role, bool suspect, const RouteRequest& request,
               absl::Span<const int> depths, absl::Duration now, Candidates* found) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Prefill workers, or if all are suspect and there are several, those.
  void CollectPrefill(const RouteRequest& request, absl::Span<const int> depths, absl::Duration now,
                      Candidates* found) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The workers of which one is to do all of the request's work.
  absl::Status CollectAlone(const RouteRequest& request, absl::Span<const int> depths,
                            absl::Duration now, Candidates* found) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Incarnation ProcessAt(int worker) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return workers_[worker].target.incarnation();
  }
  RouteQuery QueryOf(const RouteRequest& request, int worker_of_model, int prefill_workers,
                     absl::Duration now) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Pair ChooseAlone(const RouteQuery& query, const Candidates& prefill) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Pair ChoosePair(const RouteQuery& query, const Candidates& prefill,
                  absl::Span<const Candidate> decode) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status CheckSlo(const RouteRequest& request, const Candidates& prefill,
                        absl::Span<const Candidate> decode, const Pair& pair) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  InTiers MatchTiers(const RouteRequest& request) const;
  // Sets what candidates would load from their KV tiers instead of computing, as they decide it.
  void PriceLoads(const RouteQuery& query, const InTiers& held, Candidates* candidates) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // The same for what they would fetch from the holder; after PriceLoads, as they prefer to load.
  void PriceFetches(const RouteQuery& query, const Held& holder, Candidates* candidates) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Names the holder if it has several blocks more than the worker that computes.
  void NameHolder(const RouteQuery& query, const Held& holder, const Pair& pair, Route* route) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Route RouteTo(const Pair& pair) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void EndDispatches(const Route& route) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the numbers of the route's dispatches.
  void CountDispatch(const RouteQuery& query, const Pair& pair, Route* route)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountDemand(const RouteQuery& query, const Pair& pair, const Route& route)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::shared_ptr<Decision> Explain(const RouteQuery& query, const Route& route, const Pair& pair,
                                    const Candidates& prefill,
                                    absl::Span<const Candidate> decode) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void ExplainPrefill(const RouteQuery& query, const Pair& pair, const Candidates& prefill,
                      Decision* why) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void ExplainDecode(const RouteQuery& query, const Pair& pair, absl::Span<const Candidate> decode,
                     Decision* why) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Adds the candidate to the decision. `computes`: it would compute the prompt.
  DecisionCandidate& ExplainOne(const RouteQuery& query, const Candidate& c, bool computes,
                                Decision* why) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  Roster& roster_;
  const Clock& clock_;
  const RouteOptions options_;
  // Each has its lock.
  PrefixIndex& index_;
  DispatchedPrefixes dispatched_;
  Policy& policy_;
  // Taken under the roster's lock: the roster must not be called under it. Decisions are made side
  // by side, sharing it; what comes of them is noted alone.
  mutable absl::Mutex mutex_;
  std::atomic<bool> recurrent_{false};  // the model is (BlockShape)
  std::vector<Worker> workers_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_upkeep_ ABSL_GUARDED_BY(mutex_);
  PoolNames pools_ ABSL_GUARDED_BY(mutex_);
  FleetLoad fleet_ ABSL_GUARDED_BY(mutex_);
  LinkRates links_ ABSL_GUARDED_BY(mutex_);
  PairHealth health_ ABSL_GUARDED_BY(mutex_);
  FleetDemand demand_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_demand_ ABSL_GUARDED_BY(mutex_);
  std::vector<LoadOfWorker> loads_ ABSL_GUARDED_BY(mutex_);  // for its memory
  // Means over the answers so far, the last ones counting most.
  DecayedMean answer_tokens_ ABSL_GUARDED_BY(mutex_);
  DecayedMean transfer_seconds_ ABSL_GUARDED_BY(mutex_);
  DecayedMean transfer_bytes_ ABSL_GUARDED_BY(mutex_);
  // Tokens of a segment and of a block at the worker with KV tiers that became ready last; 0: there
  // is none. Workers with other segments are priced as if they had no tiers.
  std::atomic<int> tier_segment_tokens_{0};
  std::atomic<int> tier_block_tokens_{0};
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_ROUTE_PLANNER_H_
