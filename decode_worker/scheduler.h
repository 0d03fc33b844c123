// Decides which requests the decode worker admits, what its next step computes, and which sequence
// is preempted when blocks run out. Works on tokens and counts only, without gRPC or an engine.
//
//   waiting ── Admit ───────────────────▶ receiving   KV is missing: a transfer begins
//   waiting ── Admit ───────────────────▶ running     nothing is missing, or it is computed here
//   receiving ── Commit ────────────────▶ running
//   receiving ── OnTransferEnd, Evict ──▶ waiting     the transfer failed; its blocks are needed
//   running ── Preempt ─────────────────▶ waiting     marked preempted; keeps its tokens
//   running ── Remove ──────────────────▶ ended
//
// Admission: a request is admitted when there are blocks for its tokens, beyond those that the
// prefix cache holds already, and a reserve for the growth of the admitted sequences. Its answer
// takes blocks one at a time. When no block is free and nothing cached can be evicted, the sequence
// last in rank (priority, then age) is preempted and waits again. The first in rank always
// progresses, because a request that could not finish alone is refused at Submit; while other
// workers fetch cached blocks that it needs the room of, it waits for the end of their calls, and
// so it does for the jobs that run here for others (common/prefill/scheduler.h has the rules by
// which jobs and answers share blocks). An admission may preempt sequences of lower priorities,
// never of the same one.
//
// The KV of finished and of preempted sequences is inserted into the prefix cache: a preempted one
// finds there what was not evicted meanwhile. Prompts that are computed here and share a prefix
// compute it once (shared_prefill.h).
//
// States (common/kv/snapshots.h): a sequence whose prompt is computed here holds a state and a
// spare, and leaves snapshots as a job does. One that answers holds its state, in the block that it
// writes, and the one behind its last whole block, which later prompts may go on from.
//
// A step is in flight from OnLaunch to OnComplete. While one is, the next can be planned before its
// tokens are known (PlanAhead).
//
// Drafts (speculation.h): a step may compute tokens behind a sequence's last one, which its draws
// confirm or not. They get blocks only beyond what all sequences may need next, nothing is
// preempted for them, and blocks that hold none but drafts are given back when the step is over.
// What was not drawn never counts as computed, so it reaches neither the prefix cache nor another
// worker. A recurrent model's state stays behind the tokens that were known before the step: drafts
// that were drawn are computed again, with the next step's token.
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
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/kv/block_pool.h"
#include "common/kv/radix_cache.h"
#include "decode_worker/sequence.h"
#include "decode_worker/waiting_queue.h"

namespace baton::decode_worker {

struct SchedulerOptions {
  int block_tokens = 16;
  // How many blocks a segment of the worker's KV tiers has: prompts of recurrent models leave
  // snapshots at the ends of segments, too. 0: the worker has no tiers.
  int tier_segment_blocks = 0;
  int max_num_seqs = 64;              // receiving and running ones together
  int max_num_batched_tokens = 2048;  // tokens of one step
  // Bounds on waiting requests. These and the tenant's are doubled for a continuation, whose worker
  // was lost.
  int max_queued_requests = 256;
  int64_t max_queued_tokens = 1 << 20;
  // A prompt that lacks at most this many tokens is computed here, not on a prefill worker.
  int local_prefill_max_tokens = 0;
  // Sequences of more than long_context_tokens tokens together take at most long_context_share of
  // the pool, unless they belong to one request. 0: no bound.
  int long_context_tokens = 0;
  double long_context_share = 0.5;
  // Bounds on one tenant's requests, waiting and admitted. 0: no bound.
  int max_tenant_requests = 0;
  int64_t max_tenant_tokens = 0;  // prompt tokens
  int64_t fair_quantum_tokens = 512;
};

// Tokens [begin, end) of a sequence in one step, and perhaps drafts behind them; the next token is
// drawn if they are its last.
struct Chunk {
  Sequence* sequence = nullptr;
  int begin = 0;
  int end = 0;
  // Index of the chunk, in the step in flight, whose draw is this chunk's only token. nullopt: the
  // tokens are known.
  std::optional<int> drawn_by = std::nullopt;
  bool decodes = false;  // nothing of a prompt but its last token
  std::vector<int32_t> drafts = {};
  // Tokens that are computed.
  int rows() const { return end - begin + static_cast<int>(drafts.size()); }
  bool draws() const { return end == static_cast<int>(sequence->tokens.size()); }
};

struct StepPlan {
  std::vector<Chunk> chunks;
  // A prompt of which more is cached than at its admission, and how many tokens more.
  struct CacheHit {
    Sequence* sequence = nullptr;
    int tokens = 0;
  };
  std::vector<CacheHit> cache_hits;
  // Pages to copy before the step: targets[i] = sources[i].
  std::vector<int32_t> copy_sources;
  std::vector<int32_t> copy_targets;
  bool preempted = false;  // a sequence was preempted: a waiting request may fit now
};

class DecodeScheduler {
 public:
  struct Events {
    // Called before a running sequence loses its blocks; their KV, and the state behind
    // computed_tokens, are still valid. Not called if that state is not.
    std::function<void(Sequence&)> before_preemption;
    // Must cancel the sequence's transfer; OnTransferEnd then frees the blocks.
    std::function<void(Sequence&)> cancel_transfer;
    // More than 0 while other workers' fetches keep blocks from being evicted, or jobs that run
    // here for other workers, fetches or tiers hold some: all of them become free without an
    // answer's help. Null: never.
    std::function<int()> lent_blocks;
    // Returns the slots of max_num_seqs that such jobs have. Null: none.
    std::function<int()> lent_slots;
  };
  // `cache` may be null: no prefix caching. Pool and cache must outlive the scheduler.
  DecodeScheduler(const SchedulerOptions& options, kv::BlockPool& pool, kv::RadixCache* cache,
                  Events events);

  // A continuation waits with the preempted sequences, before all new ones of its priority.
  // RESOURCE_EXHAUSTED: QUEUE_FULL, TENANT_LIMIT, KV_POOL_TOO_SMALL if the request can never fit,
  // TOO_MANY_CHOICES if its choices never can.
  absl::Status Submit(std::unique_ptr<Sequence> sequence);

  // Admits the next request and returns it, or null. It has its blocks, with KV of its first
  // computed_tokens. kRunning: later steps compute the rest. kReceiving: the caller must request
  // the rest, which is written to the blocks after computed_tokens.
  Sequence* Admit();
  // Admits the next request only if it will be kReceiving and there is room without preempting any.
  // The loop calls it while a step is in flight.
  Sequence* AdmitReceiving();
  // Bounds what receiving sequences hold together, or no more: half of the pool and of the slots. A
  // sequence that needs more blocks than that computes its prompt here.
  void BoundReceiving(bool bound) { receiving_bound_ = bound; }
  // Evicts receiving sequences, the last in rank first, until the others are within the bound.
  void EvictExcess();
  int used_slots() const { return UsedSlots(); }
  // The pages that admitted sequences may ask for with their next tokens.
  int64_t GrowthPages() const;
  // Slots of running sequences, each of which may ask for a block with its next token.
  int running_slots() const;
  // A sequence got no block for its next token in the last step, for want of any to preempt.
  bool growth_waits() const { return growth_waits_; }
  // The transfer is verified: all tokens but the first drawn one have KV.
  void Commit(Sequence& sequence);
  // The last writer to the sequence's blocks has stopped, without a commit: the transfer failed or
  // the sequence was evicted. True if the sequence waits again, false if it had ended: it is
  // deleted.
  bool OnTransferEnd(Sequence& sequence);

  // Plans a step; may preempt. Empty if nothing runs. At most `max_prompt_tokens` tokens, 1 or
  // more, are of prompts, within max_num_batched_tokens less `reserved_tokens`. REQUIRES: no step
  // is in flight.
  StepPlan PlanStep(int max_prompt_tokens = std::numeric_limits<int>::max(),
                    int reserved_tokens = 0);
  // Plans the step after the one in flight, as if no draw of that one ended its sequence.
  // Sequences that were committed meanwhile and need one token computed join. nullopt if the step
  // in flight does more than draw one token each, a prompt is to be computed, or only a preemption
  // would make room. REQUIRES: one step is in flight.
  std::optional<StepPlan> PlanAhead();
  // OnLaunch: the planned step is in flight. OnComplete: the oldest step in flight is over; returns
  // its chunks, whose `sequence` is null if it was removed meanwhile. A removed sequence's blocks
  // are not freed before the last step in flight that reads them is over.
  void OnLaunch(const StepPlan& plan);
  std::vector<Chunk> OnComplete();
  // The chunks of the oldest step in flight. REQUIRES: there is one.
  const std::vector<Chunk>& in_flight() const { return inflight_.front().chunks; }
  int inflight_count() const { return static_cast<int>(inflight_.size()); }
  // How many drafts a chunk of the sequence may have that decodes. 0: it is of a beam search, its
  // next draw is for several choices, or it still owes log probabilities of its prompt.
  int MaxDrafts(const Sequence& sequence) const;
  // Gives a chunk of a planned step the first of `drafts`, as many of them as there are blocks for.
  // REQUIRES: the chunk decodes, and drafts.size() <= MaxDrafts(sequence).
  void AddDrafts(absl::Span<const int32_t> drafts, Chunk& chunk);
  // The chunk's tokens, drafts apart, have KV.
  void Computed(const Chunk& chunk);
  // The first `count` drafts of a step that is over were drawn, and are in the sequence's tokens
  // with the draw behind them. Gives back the blocks that only other drafts are in.
  void EndDrafts(Sequence& sequence, int count);
  // The chunk that was given drafts is computed without them.
  void GiveBackDraftBlocks(Sequence& sequence);
  // A recurrent model computes drafts that were drawn again.
  bool repeats_drafts() const { return pool_.shape().recurrent; }
  // Adds another choice that continues from `parent` and shares its blocks. `sequence` has id,
  // call, tokens and sampling.
  Sequence* Fork(const Sequence& parent, std::unique_ptr<Sequence> sequence);

  // Deletes a waiting or running sequence; what it computed stays in the prefix cache. For a
  // receiving one, call Evict.
  void Remove(Sequence& sequence);
  // Cancels the transfer of a receiving sequence. `ended`: the sequence is deleted when the
  // transfer ends.
  void Evict(Sequence& sequence, bool ended);
  // For a beam search that loses its blocks: deletes all of its sequences except the first, which
  // starts again from the request's tokens.
  void Restart(Call& call);

  Sequence* Find(uint64_t id);
  std::vector<Sequence*> SequencesOf(const Call& call);
  std::vector<Sequence*> All();
  // Charges generated tokens to the call's tenant.
  void Charge(const Call& call, int64_t tokens);

  int waiting_count() const { return waiting_.count(); }
  int receiving_count() const;
  int running_count() const;
  int64_t waiting_tokens() const { return waiting_.tokens(); }
  // Tokens of the requests that wait before a new one of this call.
  int64_t waiting_tokens_ahead(const Call& call) const { return waiting_.tokens_ahead(call); }
  int64_t preemption_count() const { return preemption_count_; }

  // Ends the process unless slots, queues and counts are consistent. For tests.
  void CheckIntegrity() const;

 private:
  struct TenantUse {
    int requests = 0;
    int64_t tokens = 0;
  };
  struct InflightStep {
    std::vector<Chunk> chunks;
    std::vector<kv::BlockLease> held;  // blocks that its chunks' sequences have released
    int freed_for_admission = 0;       // pages of `held`: released to admit another sequence
  };

  int BlocksFor(int64_t tokens) const;
  bool IsLong(const Sequence& sequence) const;
  int Slots(const Sequence& sequence) const;
  int UsedSlots() const;
  int MaxSlots() const;  // for answers
  // What receiving sequences hold.
  struct Receiving {
    int64_t pages = 0;
    int slots = 0;
  };
  Receiving ReceivingNow() const;
  bool WithinBound(const Receiving& receiving) const;
  int LongPages() const;
  int LongBound() const;
  // That a request of so many tokens is admitted with, nothing of it being cached.
  int64_t PagesFor(int64_t tokens) const;
  // Of a sequence of so many blocks: how many get window pages when it computes its prompt here.
  int WindowBlocksFor(int blocks) const;
  absl::Status CheckFits(const Sequence& sequence) const;
  absl::Status CheckTenant(const Sequence& sequence) const;
  // The first in the queue that may be admitted; null: none.
  Sequence* NextToAdmit();
  // `receiving`: only if it is to receive its KV.
  bool TryAdmit(Sequence& sequence, bool receiving);
  Sequence* TakeWaiting(Sequence& next);
  // Preempts a sequence of a lower priority. False if none is preempted, or its blocks are freed
  // only later: at the end of a transfer or of a step in flight.
  bool DisplaceFor(const Sequence& sequence);
  // True if `count` pages are free now, evicting cached ones as needed.
  bool MakeFree(int64_t count);
  // Allocates blocks for the next token of all of `group`, with copies where they are shared.
  bool Grow(const std::vector<Sequence*>& group, StepPlan& plan);
  // Adds chunks of the sequences that have more than one token to compute, in rank order. Returns
  // the first that could not get the window pages of its next token; null: none.
  Sequence* PlanPrompts(int max_tokens, int reserved_tokens, StepPlan& plan);
  // Gives the sequence window pages of its next `tokens` tokens, as far as there are any. Returns
  // of how many tokens.
  int TakeWindows(Sequence& sequence, int tokens);
  void SetSnapshots(Sequence& sequence) const;
  void PlaceStates(const Chunk& chunk);
  // The sequences whose prompts are planned, from `first_chunk` on, leave snapshots behind what
  // `waiting` shares with them.
  void LeaveForWaiting(const Sequence& waiting, size_t first_chunk, const StepPlan& plan) const;
  // Gives back the window pages that the sequence has left behind.
  void LeaveWindows(Sequence& sequence);
  // The blocks that the tokens of a sequence that decodes are for: those without KV.
  std::pair<int, int> NextBlocks(const Sequence& sequence) const;  // first, last
  bool NeedsBlock(const Sequence& sequence, int index) const;
  // The block `index`, which a token without KV is for, has no window pages.
  bool LacksWindow(const Sequence& sequence, int index) const;
  int PagesToGrow(const Sequence& sequence) const;
  void GrowOne(Sequence& sequence, int index, StepPlan& plan);
  // Preempts the last in rank. False if that belongs to `group`, or its blocks are freed later.
  bool PreemptLastInRank(const std::vector<Sequence*>& group);
  // Preempts the last long-context sequences while together they exceed their share.
  void EnforceLongContextShare();
  // Preempts a running sequence, or evicts a receiving one: false, as OnTransferEnd frees its
  // blocks.
  bool PreemptOrEvict(Sequence& victim);
  void Preempt(Sequence& sequence);
  void PreemptCall(Call& call);
  // Inserts what the sequence has computed into the prefix cache, and replaces its duplicates of
  // cached blocks by the cached ones.
  void InsertIntoCache(Sequence& sequence);
  std::unique_ptr<Sequence> TakeAdmitted(Sequence& sequence);
  // Plans one token of a sequence. False if the block that it writes is shared.
  bool AddAhead(Sequence& sequence, int position, std::optional<int> drawn_by,
                StepPlan& plan) const;
  // The newest step in flight with a chunk of the sequence, or null.
  InflightStep* LastStepOf(const Sequence& sequence);
  // Keeps the sequence's blocks, which include those that older steps use, until the step, if any,
  // is over.
  static void HoldBlocks(InflightStep* step, const Sequence& sequence);
  void LeaveInflightSteps(const Sequence& sequence);
  void Forget(const Sequence& sequence);

  const SchedulerOptions options_;
  kv::BlockPool& pool_;
  kv::RadixCache* const cache_;
  const Events events_;
  WaitingQueue waiting_;
  // Receiving, running and evicted, by rank.
  std::map<std::tuple<int, uint64_t, uint32_t>, std::unique_ptr<Sequence>> admitted_;
  std::map<std::string, TenantUse> tenants_;
  std::map<uint64_t, int> call_sizes_;  // sequences of each call, by id
  std::vector<std::unique_ptr<Sequence>>
      dropped_;                        // kept while a step is planned, which may refer to them
  std::deque<InflightStep> inflight_;  // oldest first
  uint64_t submissions_ = 0;
  int64_t preemption_count_ = 0;
  bool growth_waits_ = false;
  bool receiving_bound_ = false;
  bool bound_reached_ = false;  // the last TryAdmit failed for it
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_SCHEDULER_H_
