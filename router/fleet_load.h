// How busy each worker is and what a prompt would take there: the last reports, and what this
// router has sent since. The numbers that decisions are made of, packed for a pass over a thousand
// workers.
#ifndef BATON_ROUTER_FLEET_LOAD_H_
#define BATON_ROUTER_FLEET_LOAD_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/internal/v1/worker.pb.h"
#include "baton/v1/admin.pb.h"
#include "router/policy.h"
#include "router/prefill_cost.h"
#include "router/step_cost.h"

namespace baton::router {

// Workers are numbers, as in Membership; times are of its clock. Unsynchronized.
class FleetLoad {
 public:
  void Grow(int worker_count);

  // The worker takes work from now on: who it is.
  struct Identity {
    v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
    uint64_t model_fingerprint = 0;
    uint64_t hash = 0;  // the same in all routers
    int total_blocks = 0;
    int block_tokens = 16;
  };
  void Serves(int worker, const Identity& identity);
  // It takes none. What it told is kept.
  void Rests(int worker);
  // It has been silent for a while: it takes work only of those who ask for such.
  void Doubt(int worker);
  // As if it had never been.
  void Forget(int worker);

  // Numbers that no worker can mean are taken as none.
  void OnReport(int worker, const internal::v1::LoadReport& report, absl::Duration now);
  // This router has sent something there: prompt tokens to compute in that time (a decode worker
  // that only receives them: none), and blocks that it will fill. Counts until a report can contain
  // it, or it is done. Returns its number, 1 or more.
  int64_t OnDispatch(int worker, absl::Duration now, int64_t tokens, double seconds, int blocks);
  // The work of that dispatch is done, or has failed: what a report can't tell before it comes.
  void OnDone(int worker, int64_t dispatch, absl::Duration now);
  // From time to time: brings the fleet's mean costs up to date.
  void Tick(absl::Duration now);

  struct Query {
    v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
    uint64_t model_fingerprint = 0;
    bool doubted = false;  // those in doubt instead
    int prompt_tokens = 0;
    absl::Span<const int> matched_blocks;  // by worker; what lies behind its end is 0
  };
  // A candidate for each worker of the role and model that takes work, in order of their numbers.
  // Valid until anything else is called.
  absl::Span<const Candidate> Collect(const Query& query, absl::Duration now);

 private:
  struct Dispatch {
    int64_t number;
    absl::Duration at;
    double seconds;
    int tokens;
    int blocks;
  };
  // What Collect reads of each worker, and nothing else: a decision is a pass over a few cache
  // lines' worth of each group.
  struct Hot {
    double idle_at_s = 0;  // when the work known of will be done
    double reported_at_s = 0;
    double block_tokens = 16;
    // Of a candidate: its role's, or its own if it stands out. What workers of one kind tell of
    // themselves differs by chance, and the one that seems quickest would get all that is new, the
    // one that seems slowest nothing, not even the work that would show it to be as quick.
    PrefillCost cost;
  };
  // Those that may be chosen together, in order of their numbers. Candidates stay here from one
  // decision to the next; only what depends on the prompt and the time is written anew.
  struct Group {
    v1::WorkerRole role;
    bool doubted;
    uint64_t model_fingerprint;
    std::vector<Candidate> candidates;
    std::vector<Hot> hot;
  };
  struct Worker {
    v1::WorkerRole role = v1::WORKER_ROLE_UNSPECIFIED;
    bool serves = false;
    bool doubted = false;
    bool own_cost = false;    // it has told one
    bool stands_out = false;  // and it is another than that of its role
    uint64_t model_fingerprint = 0;
    uint64_t identity = 0;
    int running = 0;
    int queued = 0;
    int free_blocks = 0;
    int total_blocks = 0;
    int64_t queued_tokens = 0;
    Hot hot;
    StepCost step;
    int64_t told_step_us = 0;  // last
    int64_t told_context_tokens = 0;
    double told_idle_at_s = 0;  // by the last report alone
    // Of `dispatched`.
    int sent = 0;
    int sent_blocks = 0;
    int64_t sent_tokens = 0;
    // Where it stands among the candidates; -1: nowhere.
    int group = -1;
    int place = -1;
  };
  // Of a role: the mean of those near the middle one.
  struct MeanCost {
    PrefillCost cost;
    bool known = false;
  };

  const MeanCost& MeanOf(v1::WorkerRole role) const {
    return means_[role == v1::WORKER_ROLE_DECODE ? 1 : 0];
  }
  void RefreshMeans();
  void DropCounted(int worker, absl::Duration before);
  void Uncount(Worker& w, const Dispatch& dispatch);
  // After a change of who takes work, when it next matters: all groups anew.
  void Regroup();
  // After a change of numbers: the worker's candidate.
  void Refresh(int worker);

  std::vector<Worker> workers_;
  std::vector<std::deque<Dispatch>> dispatched_;
  std::vector<Group> groups_;
  bool regroup_ = false;
  int64_t last_dispatch_ = 0;
  MeanCost means_[2];  // prefill, decode
};

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_LOAD_H_
