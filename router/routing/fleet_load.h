// How busy each worker is, and how long a prompt would take there: the last reports, plus what this
// router has sent since.
#ifndef BATON_ROUTER_ROUTING_FLEET_LOAD_H_
#define BATON_ROUTER_ROUTING_FLEET_LOAD_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/internal/v1/worker.pb.h"
#include "baton/v1/admin.pb.h"
#include "router/routing/candidates.h"
#include "router/routing/cost_estimates.h"
#include "router/routing/fleet_demand.h"

namespace baton::router {

// Workers are numbers, as in Roster; times are of its clock. Unsynchronized; const calls may run
// side by side.
class FleetLoad {
 public:
  void Grow(int worker_count);

  // The worker may get requests.
  struct Identity {
    v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
    uint64_t model_fingerprint = 0;
    uint64_t hash = 0;  // the same in all routers
    int total_blocks = 0;
    int block_tokens = 16;
    int max_sequences = 0;  // 0: unknown
    std::string device;     // as on its card
    bool lends = false;     // as in Candidate
    int block_pages = 1;    // of the pool that a block of all layers takes, at the most
  };
  void OnReady(int worker, const Identity& identity);
  // The worker gets no new requests. Its last report is kept.
  void OnUnavailable(int worker);
  // The worker is suspect: only queries that ask for suspect workers find it.
  void OnSuspect(int worker);
  // Drops all that is known of the worker.
  void Forget(int worker);

  // Numbers that make no sense are ignored.
  void OnReport(int worker, const internal::v1::LoadReport& report, absl::Duration now);
  // What this router has sent to a worker.
  struct Sent {
    int64_t tokens = 0;          // of the prompt, to compute there
    double seconds = 0;          // of computing them; 0 on a decode worker that receives the KV
    int blocks = 0;              // that it will fill
    int64_t context_tokens = 0;  // of the prompt, on a decode worker that answers; 0: another does
    bool receives = false;       // the KV, from the worker that computes the prompt
  };
  // A request was sent. It counts from now until OnDone: by itself until a report can contain it,
  // then as part of what the worker reports. Returns the number of the dispatch, 1 or more.
  int64_t OnDispatch(int worker, absl::Duration now, const Sent& sent);
  // The prompt of that dispatch is computed. A worker that answers goes on with the answer, with no
  // other prompt before it, even if its KV is still on its way; for another one, the work is done.
  void OnComputed(int worker, int64_t dispatch, absl::Duration now);
  // The work of that dispatch is done, or has failed.
  void OnDone(int worker, int64_t dispatch, absl::Duration now);
  // Several times a second: brings the estimates of costs up to date.
  void Tick(absl::Duration now);

  // The estimated cost of prompts on that worker; nullopt if no worker has reported. Where none of
  // its role and kind (model and device) has, it is that of its kind in the other role, or else of
  // any worker. A cost of the other role halves every 10 s in which this router sends the worker no
  // prompt to compute, so one that is too high does not keep it from being measured.
  std::optional<LinearCost> PrefillCost(int worker) const;

  struct Query {
    v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
    uint64_t model_fingerprint = 0;
    bool suspect = false;  // the suspect workers instead of the ready ones
    int prompt_tokens = 0;
    absl::Span<const int> matched_blocks;  // by worker; 0 beyond its end
  };
  // A candidate for each worker of the role and model, in order of their numbers. Valid until the
  // next call that is not const.
  void Collect(const Query& query, absl::Duration now, Candidates* found) const;

  // Sets *loads to those of all workers that have reported lately, whatever their state.
  void ListLoads(absl::Duration now, std::vector<LoadOfWorker>* loads) const;

 private:
  struct Dispatch {
    int64_t number;
    absl::Duration at;
    Sent sent;
    bool reported = false;  // counts as part of what the worker reports
    // Its answer has ended, and a report may still contain it.
    std::optional<absl::Duration> done_at = std::nullopt;
    int places = 0;  // counted in Worker::sent; a worker's role may change meanwhile
  };
  using Dispatches = std::deque<Dispatch>;  // sorted by number
  // Those that may be chosen together, in order of their numbers.
  struct Group {
    v1::WorkerRole role;
    bool suspect;
    uint64_t model_fingerprint;
    CandidateTable table;
  };
  struct Worker {
    v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
    bool serves = false;
    bool suspect = false;
    uint64_t model_fingerprint = 0;
    uint64_t identity = 0;
    int running = 0;
    int queued = 0;
    int receiving = 0;
    int free_blocks = 0;
    int total_blocks = 0;
    int max_sequences = 0;
    bool lends = false;
    int64_t queued_tokens = 0;
    int64_t context_tokens = 0;
    double token_pages = 0;
    // Seconds of the last steps with prompts, each counted less with time (MeasuredSteps).
    double prompt_steps_s = 0;
    CandidateTable::PromptCost prompt_cost;
    std::string kind;  // workers with the same text should be equally fast
    // Set while no worker of its role and kind has reported what prompts cost: since when others'
    // cost stands in, or this router has last sent a prompt to compute.
    std::optional<double> stood_in_at_s;
    double idle_at_s = 0;  // when the work known of will be done
    double reported_at_s = 0;
    double reported_idle_at_s = 0;  // by the last report alone
    absl::Duration may_contain;     // the last report may contain what was sent before that time
    // Sums over the entries of `dispatched_` that no report can contain yet.
    int sent = 0;
    int sent_receiving = 0;
    int sent_blocks = 0;
    int64_t sent_tokens = 0;
    int64_t sent_context_tokens = 0;
    // Sums over the answers that have ended, but are part of the last report.
    int ended = 0;
    int ended_receiving = 0;  // before their prompts were computed
    int ended_blocks = 0;
    int64_t ended_context_tokens = 0;
    int64_t last_sent = 0;  // number of its last dispatch
    int group = -1;         // -1: it is no candidate
    int place = -1;         // in the group's table
  };

  CostEstimates& PromptCosts(v1::WorkerRole role) {
    return role == v1::WORKER_ROLE_DECODE ? prompts_on_decode_ : prompts_on_prefill_;
  }
  CostEstimates::Estimate PromptEstimate(int worker) const;
  // Returns dispatched_[worker].end() if the dispatch has ended or is too old.
  Dispatches::iterator Find(int worker, int64_t dispatch);
  // Counts what was sent by then as part of what the worker reports.
  void CountAsReported(int worker, absl::Duration sent_by);
  // The places in a batch that the dispatch takes. What a decode worker computes for another worker
  // is no sequence of its batch.
  static int PlacesOf(const Worker& w, const Sent& sent);
  // The report shows the worker as it was at that time, without the answers that had ended by then.
  void DropEnded(int worker, absl::Duration shown_at);
  // Adds up what was reported and what has been sent since.
  void SetIdleAt(int worker, double reported_s);
  static void Uncount(Worker& w, const Dispatch& dispatch);
  static void CountEnded(Worker& w, const Dispatch& dispatch);
  // Puts the worker into the group that it belongs to now, if any.
  void Regroup(int worker);
  void Leave(int worker);
  // Updates the worker's candidate after a change of its numbers.
  void Refresh(int worker);
  void RefreshAll();
  // The same for all but the costs of prompts; whether those have changed.
  bool RefreshRow(int worker);
  // Tells the group's table what prompts cost.
  void PricePrompts(Group& group);

  std::vector<Worker> workers_;
  std::vector<Dispatches> dispatched_;
  std::vector<Group> groups_;
  int64_t last_dispatch_ = 0;
  // Costs of prompts are apart by role: once both are measured, the one says nothing about the
  // other.
  CostEstimates prompts_on_prefill_{kDefaultPrefillCost};
  CostEstimates prompts_on_decode_{kDefaultPrefillCost};
  CostEstimates decode_steps_{kDefaultDecodeCost};
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_FLEET_LOAD_H_
