// Which requests the decode worker lets in, what its next step computes, and who gives way when
// blocks run out. Decides over tokens and counts: knows no gRPC, no engine.
//
//   Submit ─▶ waiting ─ Admit ─▶ receiving ─ Commit ─▶ running ─ Remove
//               ▲          └── (computes its prompt here) ──▲ │
//               │                  │ Evict                    │
//               └── OnTransferEnd ─┴───────── preempted ◀─────┘
//
// Admission: a request enters when there are blocks for the tokens it has, beyond those that the
// prefix cache holds already, and a reserve for the growth of those inside. Its answer takes blocks
// one at a time. When none is left and nothing cached can be evicted, the last in rank (priority,
// then age) gives its blocks up and waits again; the first in rank always progresses, because a
// request that could not finish alone is refused at Submit. Who enters may displace lower
// priorities, never its own.
//
// What a sequence had computed goes into the prefix cache, finished or preempted: whoever comes
// back finds what has not been evicted meanwhile. Prompts that are computed here and begin alike
// compute what they share once (shared_prefill.h).
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_SCHEDULER_H_
#define BATON_DECODE_WORKER_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/kv/block_pool.h"
#include "common/kv/radix_cache.h"
#include "decode_worker/sequence.h"
#include "decode_worker/waiting_line.h"

namespace baton::decode_worker {

struct SchedulerOptions {
  int block_tokens = 16;
  int max_num_seqs = 64;              // receiving and running
  int max_num_batched_tokens = 2048;  // of one step
  // Of what waits. A continuation, whose worker was lost, finds as much room again here, and within
  // its tenant's bounds.
  int max_queued_requests = 256;
  int64_t max_queued_tokens = 1 << 20;
  // Missing tokens up to which the prompt's tail is computed here instead of asked for.
  int local_prefill_max_tokens = 0;
  // Sequences of more tokens than this together take at most this share of the pool, but for those
  // of a lone request. 0: no bound.
  int long_context_tokens = 0;
  double long_context_share = 0.5;
  // Of one tenant, waiting and inside. 0: no bound.
  int max_tenant_requests = 0;
  int64_t max_tenant_tokens = 0;  // of prompts
  int64_t fair_quantum_tokens = 512;
};

// Tokens [begin, end) of a sequence in one step; the next is drawn if they are its last.
struct Chunk {
  Sequence* sequence = nullptr;
  int begin = 0;
  int end = 0;
  // Not negative: its one token is the draw of that chunk of the step before, which is under way.
  int drawn_by = -1;
  bool draws() const { return end == static_cast<int>(sequence->tokens.size()); }
};

struct StepPlan {
  std::vector<Chunk> chunks;
  // Prompts that found more in the prefix cache than when they were admitted, and how many tokens.
  struct Found {
    Sequence* sequence = nullptr;
    int tokens = 0;
  };
  std::vector<Found> found;
  // To be copied before the step: targets[i] = sources[i].
  std::vector<kv::BlockId> copy_sources;
  std::vector<kv::BlockId> copy_targets;
  bool preempted = false;  // someone gave way: whoever waits may fit now
};

class DecodeScheduler {
 public:
  struct Events {
    // A running sequence is about to lose its blocks; they are still whole.
    std::function<void(Sequence&)> before_preemption;
    // Its transfer is to be cancelled; the blocks come back with OnTransferEnd.
    std::function<void(Sequence&)> cancel_transfer;
  };
  // `cache` may be null: no prefix caching. Pool and cache must outlive the scheduler.
  DecodeScheduler(const SchedulerOptions& options, kv::BlockPool& pool, kv::RadixCache* cache,
                  Events events);

  // A continuation waits with the preempted, before all new ones of its priority.
  // RESOURCE_EXHAUSTED: QUEUE_FULL, TENANT_LIMIT, KV_POOL_TOO_SMALL if the request can never fit,
  // TOO_MANY_CHOICES if its choices never can.
  absl::Status Submit(std::unique_ptr<Sequence> sequence);

  // The next request that may enter, or null. Its blocks are there, the first computed_tokens of
  // them with KV. kRunning: the rest is computed by the steps to come. kReceiving: the rest is to
  // be asked for, and written to the blocks behind computed_tokens.
  Sequence* Admit();
  // The transfer is verified: the KV of all tokens but the first drawn one is there.
  void Commit(Sequence& sequence);
  // The last writer to the sequence's blocks has stopped, without a commit: its transfer failed, or
  // it was evicted. True if the sequence waits again, false if it had ended and is gone.
  bool OnTransferEnd(Sequence& sequence);

  // What to compute now; may preempt. Empty if nothing runs. Of prompts at most so many tokens, 1
  // or more, besides what max_num_batched_tokens allows.
  StepPlan PlanStep(int max_prompt_tokens = std::numeric_limits<int>::max());
  // The step behind the one that is under way, planned as if each of its draws were a token that
  // ends nothing; whoever has come meanwhile and needs one token computed joins. Nothing if it is
  // better to wait: that step is not all draws of one token, somebody has a prompt to be computed,
  // or only a preemption could make room.
  std::optional<StepPlan> PlanAhead();
  // A step begins; the first that began has ended: its chunks, without a sequence where that left
  // meanwhile. Blocks of a sequence that leaves stay taken until no step under way looks at them.
  // REQUIRES: PlanStep is called while none is under way, PlanAhead while one is.
  void Launched(const StepPlan& plan);
  std::vector<Chunk> Landed();
  int steps_under_way() const { return static_cast<int>(flights_.size()); }
  void Computed(const Chunk& chunk);
  // Another choice that goes on from where `parent` is; it shares the blocks. `sequence` has id,
  // call, tokens and sampling.
  Sequence* Fork(const Sequence& parent, std::unique_ptr<Sequence> sequence);

  // Takes a sequence out wherever it is, and keeps what it computed in the prefix cache. One that
  // receives must not be asked for: Evict it.
  void Remove(Sequence& sequence);
  // Cancels the transfer of a receiving sequence. `ended`: nobody wants it any more.
  void Evict(Sequence& sequence, bool ended);
  // All but the first of a call's running sequences are dropped, and that one starts from its
  // request's tokens anew: what a beam search that lost its blocks does.
  void Restart(Call& call);

  Sequence* Find(uint64_t id);
  std::vector<Sequence*> SequencesOf(const Call& call);
  std::vector<Sequence*> All();
  // Tokens that the tenant has been given beyond its prompt.
  void Charge(const Call& call, int64_t tokens);

  int waiting_count() const { return waiting_.count(); }
  int receiving_count() const;
  int running_count() const;
  int64_t waiting_tokens() const { return waiting_.tokens(); }
  // Of those that do not stand behind a request of this call.
  int64_t waiting_tokens_ahead(const Call& call) const { return waiting_.tokens_ahead(call); }
  int64_t preemption_count() const { return preemption_count_; }

  // Ends the process unless slots, queues and counts agree. For tests.
  void CheckIntegrity() const;

 private:
  struct TenantUse {
    int requests = 0;
    int64_t tokens = 0;
  };
  // A step that is under way.
  struct Flight {
    std::vector<Chunk> chunks;
    std::vector<kv::BlockLease> held;  // that its chunks' sequences have no more
    int given_up = 0;                  // of these: for a sequence that is to be admitted
  };

  int BlocksFor(int64_t tokens) const;
  bool IsLong(const Sequence& sequence) const;
  int Slots(const Sequence& sequence) const;
  int UsedSlots() const;
  int LongBlocks() const;
  int LongBound() const;
  absl::Status CheckFits(const Sequence& sequence) const;
  absl::Status CheckTenant(const Sequence& sequence) const;
  bool TryAdmit(Sequence& sequence);
  // One of a lower priority gives way. False if nobody does, or blocks come only later: with the
  // end of a transfer, or of a step under way.
  bool DisplaceFor(const Sequence& sequence);
  // True if `count` blocks are free now, evicting cached ones as needed.
  bool MakeFree(int count);
  // Blocks for the next token of all of `group`, with copies where they are shared.
  bool Grow(const std::vector<Sequence*>& group, StepPlan& plan);
  // Chunks of those that have more than one token to compute, in rank order.
  void PlanPrompts(int max_tokens, StepPlan& plan);
  bool NeedsBlock(const Sequence& sequence) const;
  void GrowOne(Sequence& sequence, StepPlan& plan);
  // False if `group` itself is the last in rank.
  bool PreemptSomeoneAfter(const std::vector<Sequence*>& group);
  // Long-context sequences that have grown beyond their share: the last ones give way.
  void KeepLongShare();
  // False if the blocks come later, with OnTransferEnd.
  bool GiveUp(Sequence& victim);
  void Preempt(Sequence& sequence);
  void PreemptCall(Call& call);
  void Keep(Sequence& sequence);
  std::unique_ptr<Sequence> TakeInside(Sequence& sequence);
  // Plans one token of a sequence, if its place is nobody else's.
  bool AddAhead(Sequence& sequence, int position, int drawn_by, StepPlan& plan) const;
  // The youngest step with a chunk of the sequence, or null.
  Flight* LastFlightOf(const Sequence& sequence);
  // The sequence's blocks stay taken until the step is over, if there is one. It has the blocks of
  // older steps, too.
  static void HoldBlocks(Flight* flight, const Sequence& sequence);
  void LeaveFlights(const Sequence& sequence);
  void Forget(const Sequence& sequence);

  const SchedulerOptions options_;
  kv::BlockPool& pool_;
  kv::RadixCache* const cache_;
  const Events events_;
  WaitingLine waiting_;
  // Receiving, running and evicted, by rank.
  std::map<std::tuple<int, uint64_t, uint32_t>, std::unique_ptr<Sequence>> inside_;
  std::map<std::string, TenantUse> tenants_;
  std::map<uint64_t, int> call_sizes_;              // sequences of each call, by id
  std::vector<std::unique_ptr<Sequence>> dropped_;  // by the step being planned
  std::deque<Flight> flights_;                      // oldest first
  uint64_t submissions_ = 0;
  int64_t preemption_count_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_SCHEDULER_H_
