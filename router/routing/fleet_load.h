// How busy each worker is and what a prompt would take there: the last reports, and what this
// router has sent since. The numbers that decisions are made of, packed for a pass over a thousand
// workers.
#ifndef BATON_ROUTER_ROUTING_FLEET_LOAD_H_
#define BATON_ROUTER_ROUTING_FLEET_LOAD_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/internal/v1/worker.pb.h"
#include "baton/v1/admin.pb.h"
#include "router/routing/cost_estimates.h"
#include "router/routing/policy.h"

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
    int max_sequences = 0;  // 0: unknown
    std::string device;     // as on its card
  };
  void Serves(int worker, const Identity& identity);
  // The worker gets no new requests. Its last report is kept.
  void Rests(int worker);
  // The worker is suspect: only queries that ask for suspect workers find it.
  void Doubt(int worker);
  // As if it had never been.
  void Forget(int worker);

  // Numbers that no worker can mean are taken as none.
  void OnReport(int worker, const internal::v1::LoadReport& report, absl::Duration now);
  // What this router has sent to a worker.
  struct Sent {
    int64_t tokens = 0;          // of the prompt, to compute there
    double seconds = 0;          // that this takes; a decode worker that receives the KV: none
    int blocks = 0;              // that it will fill
    int64_t context_tokens = 0;  // decode workers: of the prompt
  };
  // Counts until a report can contain it, or it is done. Returns its number, 1 or more.
  int64_t OnDispatch(int worker, absl::Duration now, const Sent& sent);
  // The work of that dispatch is done, or has failed: what a report can't tell before it comes.
  void OnDone(int worker, int64_t dispatch, absl::Duration now);
  // Several times a second: brings the estimates of costs up to date.
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
    Sent sent;
  };
  // What Collect reads of each worker, and nothing else: a decision is a pass over a few cache
  // lines' worth of each group.
  struct Hot {
    double idle_at_s = 0;  // when the work known of will be done
    double reported_at_s = 0;
    double block_tokens = 16;
    LinearCost prefill_cost;  // as estimated
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
    uint64_t model_fingerprint = 0;
    uint64_t identity = 0;
    int running = 0;
    int queued = 0;
    int free_blocks = 0;
    int total_blocks = 0;
    int max_sequences = 0;
    int64_t queued_tokens = 0;
    int64_t context_tokens = 0;
    Hot hot;
    double told_idle_at_s = 0;  // by the last report alone
    // Of `dispatched`.
    int sent = 0;
    int sent_blocks = 0;
    int64_t sent_tokens = 0;
    int64_t sent_context_tokens = 0;
    // Where it stands among the candidates; -1: nowhere.
    int group = -1;
    int place = -1;
  };

  CostEstimates& PromptCosts(v1::WorkerRole role) {
    return role == v1::WORKER_ROLE_DECODE ? prompts_on_decode_ : prompts_on_prefill_;
  }
  void DropCounted(int worker, absl::Duration before);
  void Uncount(Worker& w, const Dispatch& dispatch);
  // After a change of who takes work, when it next matters: all groups anew.
  void Regroup();
  // After a change of numbers: the worker's candidate.
  void Refresh(int worker);
  void RefreshAll();

  std::vector<Worker> workers_;
  std::vector<std::deque<Dispatch>> dispatched_;
  std::vector<Group> groups_;
  bool regroup_ = false;
  int64_t last_dispatch_ = 0;
  // Of prompts, on prefill workers and on decode workers: the one role says nothing of the other.
  CostEstimates prompts_on_prefill_{kDefaultPrefillCost};
  CostEstimates prompts_on_decode_{kDefaultPrefillCost};
  CostEstimates decode_steps_{kDefaultDecodeCost};
};

}  // namespace baton::router

#endif  // BATON_ROUTER_ROUTING_FLEET_LOAD_H_
