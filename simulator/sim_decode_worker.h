// A simulated decode worker: continuous batching over a pool of KV blocks.
//
//   Accept ─▶ queue ─ Admit ─▶ receiving ─ Arrive ─▶ running ─ End ─▶ ended
//               ▲                                      │
//               └───────────── preempted ◀─────────────┘
//
// A step for n sequences that have c tokens of context together takes
// fixed + sequence · n + context_token · c, times how slow the worker is, times some noise, and
// gives each of the n one token. A request enters, first come, first served, when there is a slot
// and there are blocks for the tokens that it has and one for each sequence inside; answers take
// blocks one at a time. When none is left, the sequence that entered last, of those that
// run, gives its blocks up and goes back to the head of the queue.
//
// A prompt that is computed here (Accept) is so in chunks beside the running sequences, first come,
// first served, as many tokens in a step as the real worker's budget allows
// (common/worker/prompt_budget.h). Such a step takes the larger of the two fixed parts, since it
// reads the weights once, and the rest of both.
//
// Sequences that have ended leave their whole blocks of the trace (kSimBlockTokens) in a prefix
// cache, which takes what the sequences leave of the pool.
#ifndef BATON_SIMULATOR_SIM_DECODE_WORKER_H_
#define BATON_SIMULATOR_SIM_DECODE_WORKER_H_

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "baton/internal/v1/worker.pb.h"
#include "common/base/expert_choice.h"
#include "common/worker/prompt_budget.h"
#include "common/worker/step_cost.h"
#include "simulator/block_cache.h"
#include "simulator/random.h"
#include "simulator/sim_worker.h"
#include "simulator/trace.h"

namespace baton::simulator {

inline constexpr int kKvBlockTokens = 16;
// Blocks of a pool in a block of the trace.
inline constexpr int kKvBlocksPerSimBlock = kSimBlockTokens / kKvBlockTokens;

inline int KvBlocks(int64_t tokens) {
  return static_cast<int>((tokens + kKvBlockTokens - 1) / kKvBlockTokens);
}

struct DecodeCost {
  double fixed_us = 20'000;
  double sequence_us = 50;
  double context_token_us = 0.25;
  double expert_us = 0;  // of one expert that a step reads in each layer
  ExpertChoice experts = {};

  double Us(double sequences, double context_tokens) const {
    return fixed_us + sequence_us * sequences + context_token_us * context_tokens +
           expert_us * experts.Distinct(sequences);
  }
};

struct DecodeWorkerShape {
  std::string device = "simulated";
  DecodeCost cost;
  bool computes_prompts = false;  // routers are told what that costs here
  PrefillCost prompt_cost;
  int step_tokens = 2048;  // the most of a step, answers and prompts together
  int max_num_seqs = 64;
  int kv_blocks = 8192;
  double kv_bytes_per_token = kKvBytesPerToken;
  double noise = 0.05;  // a step takes up to so much more or less, each as likely
  // Before it has measured anything: as a real worker has it of a model of 8 B on such a device.
  worker::StepCost::Terms prior = {8e9, 8e9 / 256, 65'536};
};

// Steps that a worker has measured.
struct MeasuredSteps {
  int count = 0;
  int sequences = 0;
  int64_t context_tokens = 0;
  int64_t us = 0;  // each
};

class SimDecodeWorker {
 public:
  SimDecodeWorker(const Trace& trace, const DecodeWorkerShape& shape, uint64_t seed);

  bool alive() const { return alive_; }
  // Empty and with a new epoch. Its first steps take at least so long each.
  void Start(int cold_steps = 0, int64_t cold_step_us = 0);
  struct Lost {
    int request;
    int generated_tokens;
    int64_t last_token_us;  // of those generated here; -1: none was
  };
  // Returns the requests that were here, in whatever state.
  std::vector<Lost> Kill();
  // Steps begun from now on take so many times as long.
  void SetSlowness(double factor) { slowness_ = factor; }
  // As if it had measured these just now. REQUIRES: alive.
  void Measure(const MeasuredSteps& steps, int64_t now_us);

  // Prompt and answer fit into the pool, so that it can be accepted.
  bool Fits(int request) const;
  // A request (an index into the trace) of which so many tokens were generated before. `here`: this
  // worker computes what it lacks of the prompt. REQUIRES: alive; it fits.
  void Accept(int request, int generated_tokens, int64_t now_us, bool here = false);
  struct Entered {
    int request;
    int context_tokens;
    int missing_tokens;  // of these, to be brought before it can run: 1 or more
    bool preempted;      // it was inside before
    int64_t waited_us;   // in the queue
    bool waited_for_kv;  // before it entered: for blocks; else for a slot, if it waited
    bool here;           // this worker computes what is missing
  };
  // Takes in what may enter now.
  std::vector<Entered> Admit(int64_t now_us);
  // What was missing of an entered request has come: it runs from the next step on. REQUIRES: it is
  // not computed here.
  void Arrive(int request);

  // Begins a step if none is under way and a sequence runs: when it will end. -1: none was begun.
  int64_t Begin(int64_t now_us);
  // The requests computed here whose first chunk is in the last step that was begun.
  const std::vector<int>& started() const { return started_; }
  struct Joined {
    int request;
    int64_t last_token_us;  // of one that was preempted here; -1: it was not
  };
  struct Step {
    int64_t us = 0;
    int sequences = 0;
    // Those that were not in the step before. All others wait for a token since that step's end.
    std::vector<Joined> joined;
    std::vector<int> ended;
    // Requests whose prompt is computed, with which their first token comes.
    std::vector<int> computed;
  };
  // Ends the step under way. REQUIRES: one is.
  Step End(int64_t now_us);

  // As this worker tells routers.
  internal::v1::WorkerCard Card(const std::string& id) const;
  internal::v1::LoadReport Load(int64_t now_us) const;
  // Changes of the prefix cache since the last call, numbered. False: there are none. To be called
  // after each of Begin, End and Admit: no key is both added and removed by one of them.
  bool TakeDelta(internal::v1::CacheDelta* delta);

  uint64_t epoch() const { return epoch_; }
  int running() const { return running_; }
  int queued() const { return static_cast<int>(queue_.size()); }
  int sequences() const { return static_cast<int>(inside_.size()) + queued(); }
  int64_t preemptions() const { return preemptions_; }
  const DecodeWorkerShape& shape() const { return shape_; }
  int64_t last_step_us() const { return last_step_us_; }  // when it ended
  // Blocks of the pool: these three add up to the pool.
  int active_blocks() const { return active_blocks_ + held_ * kKvBlocksPerSimBlock; }
  int cached_blocks() const { return cache_.size() * kKvBlocksPerSimBlock; }
  int free_blocks() const { return shape_.kv_blocks - active_blocks() - cached_blocks(); }
  // Ends the process unless the counts agree with what the sequences have. For tests.
  void CheckIntegrity() const;

 private:
  struct Waiting {
    int request;
    int generated_tokens;
    int64_t last_token_us;  // -1: has not run here
    int64_t since_us;
    bool here = false;
  };
  // A prompt that is computed here.
  struct Prompt {
    int request;
    int computed;  // tokens, those cached included
    int end;
    int planned = 0;  // of the step under way
    bool begun = false;
  };
  // Has blocks. While it runs, what grows with each step follows from the number of steps since it
  // joined, so that no step has to touch all sequences.
  struct Sequence {
    int request = 0;
    int generated_tokens = 0;    // when it entered
    int64_t last_token_us = -1;  // before it entered
    int matched = 0;             // blocks of the trace, in the cache
    int64_t joined_at = -1;      // number of the step; -1: it does not run
  };
  using Sequences = std::list<Sequence>;

  int Answer(int request) const;
  int64_t Ran(const Sequence& s) const;
  int Generated(const Sequence& s) const;
  int Context(const Sequence& s) const;
  int OwnBlocks(const Sequence& s) const;
  int Phase(const Sequence& s) const;
  bool MakeFree(int blocks);
  bool TryEnter(const Waiting& waiting, int64_t now_us, std::vector<Entered>* entered);
  void Join(int request);
  void Grow(int64_t now_us);
  void StopRunning(const Sequence& s);
  void PlanPrompts();
  double StepUs() const;
  void Remove(Sequences::iterator sequence);
  void Keep(int request);

  const Trace& trace_;
  const DecodeWorkerShape shape_;
  SimRandom random_;
  bool alive_ = false;
  uint64_t epoch_ = 0, delta_number_ = 0;
  double slowness_ = 1;
  int cold_steps_ = 0;
  int64_t cold_step_us_ = 0;

  std::deque<Waiting> queue_;
  int64_t queued_tokens_ = 0;
  bool lacks_kv_ = false;  // the first in the queue has waited for blocks since the last Admit
  Sequences inside_;       // the one that entered last is last
  absl::flat_hash_map<int, Sequences::iterator> by_request_;
  int running_ = 0;
  int64_t running_tokens_ = 0;    // of context
  int64_t receiving_tokens_ = 0;  // of those inside that do not run
  std::vector<int> joining_;      // run from the next step on
  std::vector<Joined> first_;     // for which the step under way is the first
  std::deque<Prompt> prompts_;    // in order of their entry
  std::vector<int> started_;
  int planned_tokens_ = 0;            // of prompts, in the step under way
  std::multimap<int64_t, int> ends_;  // by number of the step after which they end
  int by_phase_[kKvBlockTokens] = {};
  int64_t steps_ = 0;  // ended
  bool stepping_ = false;
  MeasuredSteps step_;  // under way
  int64_t last_step_us_ = 0;

  BlockCache cache_;
  std::vector<uint16_t> uses_;  // by block of the trace: sequences inside that matched it
  std::vector<bool> is_held_;   // evicted while it was used: takes its blocks until it is not
  int held_ = 0;
  int used_cached_ = 0;  // in the cache, and used
  int active_blocks_ = 0;
  std::vector<int32_t> added_, removed_;  // since the last TakeDelta

  worker::StepCost cost_;                       // as a real worker learns it
  std::optional<worker::PromptBudget> budget_;  // of this life
  int64_t preemptions_ = 0;
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_SIM_DECODE_WORKER_H_
