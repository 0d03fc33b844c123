#include "decode_worker/scheduler.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/kv/snapshots.h"
#include "decode_worker/beam_search.h"
#include "decode_worker/shared_prefill.h"

namespace baton::decode_worker {

DecodeScheduler::DecodeScheduler(const SchedulerOptions& options, kv::BlockPool& pool,
                                 kv::RadixCache* cache, Events events)
    : options_(options),
      pool_(pool),
      cache_(cache),
      events_(std::move(events)),
      waiting_(options.fair_quantum_tokens) {
  // Otherwise a batch full of decoding sequences would leave no room to compute any prompt.
  BATON_CHECK_GT(options.max_num_batched_tokens, options.max_num_seqs);
}

void DecodeScheduler::InsertIntoCache(Sequence& sequence) {
  if (cache_ == nullptr || sequence.computed_tokens == 0) return;
  const absl::Span<const int32_t> computed =
      absl::MakeConstSpan(sequence.tokens).first(static_cast<size_t>(sequence.computed_tokens));
  cache_->Insert(sequence.call->root, computed, sequence.blocks);
  sequence.call->retention.Apply(*cache_, sequence.call->root, computed);
  // Uses the cached blocks in place of its duplicates. Else both copies would be locked, and a
  // sequence that fits into the pool alone might not fit beside its duplicates.
  kv::Match match = cache_->MatchPrefix(sequence.call->root, computed, sequence.computed_tokens);
  const std::vector<kv::BlockId>& own = sequence.blocks.ids();
  if (std::equal(match.blocks.ids().begin(), match.blocks.ids().end(), own.begin())) return;
  HoldBlocks(LastStepOf(sequence), sequence);
  kv::BlockLease rest = sequence.blocks.SplitAt(match.blocks.size());
  sequence.blocks = std::move(match.blocks);
  sequence.blocks.Append(std::move(rest));
}

int DecodeScheduler::TakeWindows(Sequence& sequence, int tokens) {
  const kv::BlockShape& shape = pool_.shape();
  if (shape.recurrent) {
    return kv::TakeSpare(pool_, cache_, sequence.computed_tokens, options_.block_tokens,
                         sequence.blocks)
               ? tokens
               : 0;
  }
  const int end = BlocksFor(int64_t{sequence.computed_tokens} + tokens);
  if (!shape.windowed() || sequence.window_end >= end) return tokens;
  const int lacking = (end - sequence.window_end) * shape.window_pages;
  if (!MakeFree(lacking) && cache_ != nullptr) cache_->Evict(cache_->evictable_page_count());
  sequence.window_end = sequence.blocks.AddWindows(sequence.window_end, end);
  return std::min(tokens, sequence.window_end * options_.block_tokens - sequence.computed_tokens);
}

void DecodeScheduler::SetSnapshots(Sequence& sequence) const {
  sequence.snapshots.clear();
  if (cache_ == nullptr || !MayReuse(sequence)) return;
  const size_t matchable = (sequence.tokens.size() - 1) / options_.block_tokens;
  const auto reusable =
      absl::MakeConstSpan(sequence.tokens).first(matchable * options_.block_tokens);
  const int end = static_cast<int>(matchable);
  const int retained =
      std::min(end, sequence.call->retention.SnapshotBlock(*cache_, options_.block_tokens));
  for (const int blocks : {end, retained, cache_->ReachedBlocks(sequence.call->root, reusable)}) {
    kv::AddSnapshot(blocks, options_.tier_segment_blocks, sequence.snapshots);
  }
}

void DecodeScheduler::PlaceStates(const Chunk& chunk) {
  kv::PlaceStates(pool_, cache_, chunk.begin, chunk.end, options_.block_tokens,
                  chunk.sequence->snapshots, chunk.sequence->call->retention.retention.priority,
                  chunk.sequence->blocks);
}

// Perhaps a block more than the next token sees stays: the prefix that ends with the last whole
// block can then be used again.
void DecodeScheduler::LeaveWindows(Sequence& sequence) {
  sequence.blocks.DropWindows(
      pool_.shape().FirstWindowBlock(sequence.computed_tokens / options_.block_tokens));
}

void DecodeScheduler::Commit(Sequence& sequence) {
  BATON_CHECK(sequence.state == Sequence::State::kReceiving) << "commit of " << sequence.id;
  sequence.state = Sequence::State::kRunning;
  sequence.blocks.SetUse(kv::BlockUse::kActive);
  // The token that the prefill worker drew is the last of `tokens`, and has no KV yet. If it drew
  // none (several choices are drawn here), the last token's logits are needed: it is computed
  // again, to the same bits.
  sequence.computed_tokens = static_cast<int>(sequence.tokens.size()) - 1;
  InsertIntoCache(sequence);
  LeaveWindows(sequence);
}

bool DecodeScheduler::OnTransferEnd(Sequence& sequence) {
  BATON_CHECK(sequence.state == Sequence::State::kEvicted ||
              sequence.state == Sequence::State::kReceiving);
  std::unique_ptr<Sequence> owned = TakeAdmitted(sequence);
  owned->blocks.Release();
  owned->computed_tokens = 0;
  if (owned->ended) {
    Forget(*owned);
    return false;
  }
  waiting_.PushResumed(std::move(owned));
  return true;
}

StepPlan DecodeScheduler::PlanStep(int max_prompt_tokens, int reserved_tokens) {
  BATON_CHECK(inflight_.empty()) << "a step is in flight";
  StepPlan plan;
  growth_waits_ = false;
  dropped_.clear();
  const int64_t preemptions = preemption_count_;
  EnforceLongContextShare();
  std::vector<Sequence*> decoding;
  for (const auto& [rank, sequence] : admitted_) {
    if (sequence->state == Sequence::State::kRunning && sequence->decodes()) {
      decoding.push_back(sequence.get());
    }
  }
  // In rank order: preempted sequences come later, and are not in the plan yet.
  for (size_t i = 0; i < decoding.size();) {
    std::vector<Sequence*> group = {decoding[i++]};
    if (group[0]->call->beams != nullptr) {
      while (i < decoding.size() && decoding[i]->call == group[0]->call) {
        group.push_back(decoding[i++]);
      }
    }
    if (group[0]->state != Sequence::State::kRunning || !Grow(group, plan)) continue;
    for (Sequence* sequence : group) {
      plan.chunks.push_back({.sequence = sequence,
                             .begin = sequence->computed_tokens,
                             .end = static_cast<int>(sequence->tokens.size()),
                             .decodes = true});
    }
  }
  Sequence* stalled = PlanPrompts(max_prompt_tokens, reserved_tokens, plan);
  // Sequences of lower rank keep window pages that it needs, and may wait for what it computes.
  while (plan.chunks.empty() && stalled != nullptr && PreemptLastInRank({stalled})) {
    stalled = PlanPrompts(max_prompt_tokens, reserved_tokens, plan);
  }
  plan.preempted = preemption_count_ > preemptions;
  return plan;
}

Sequence* DecodeScheduler::PlanPrompts(int max_tokens, int reserved_tokens, StepPlan& plan) {
  Sequence* stalled = nullptr;
  int decoded = 0;
  for (const Chunk& chunk : plan.chunks) decoded += chunk.rows();
  int budget = std::min(max_tokens, options_.max_num_batched_tokens - reserved_tokens - decoded);
  std::vector<const Sequence*> ahead;
  const size_t first_chunk = plan.chunks.size();
  for (const auto& [rank, sequence] : admitted_) {
    if (sequence->state != Sequence::State::kRunning || sequence->decodes()) continue;
    if (cache_ != nullptr && MayReuse(*sequence)) {
      const int found = TakeCached(*cache_, *sequence);
      if (found > 0) plan.cache_hits.push_back({sequence.get(), found});
      if (WaitsForOneOf(ahead, *sequence, options_.block_tokens)) {
        if (pool_.shape().recurrent) LeaveForWaiting(*sequence, first_chunk, plan);
        continue;
      }
    }
    ahead.push_back(sequence.get());
    int count = std::min(budget, sequence->remaining_tokens());
    if (count <= 0) break;
    count = TakeWindows(*sequence, count);
    if (count <= 0) {
      if (stalled == nullptr) stalled = sequence.get();
      continue;
    }
    plan.chunks.push_back(
        {sequence.get(), sequence->computed_tokens, sequence->computed_tokens + count});
    budget -= count;
  }
  if (pool_.shape().recurrent) {
    for (size_t i = first_chunk; i < plan.chunks.size(); ++i) PlaceStates(plan.chunks[i]);
  }
  return stalled;
}

void DecodeScheduler::LeaveForWaiting(const Sequence& waiting, size_t first_chunk,
                                      const StepPlan& plan) const {
  for (size_t i = first_chunk; i < plan.chunks.size(); ++i) {
    Sequence& other = *plan.chunks[i].sequence;
    kv::AddSnapshot(SharedTokens(other, waiting, options_.block_tokens) / options_.block_tokens,
                    options_.tier_segment_blocks, other.snapshots);
  }
}

std::pair<int, int> DecodeScheduler::NextBlocks(const Sequence& sequence) const {
  return {sequence.computed_tokens / options_.block_tokens,
          (static_cast<int>(sequence.tokens.size()) - 1) / options_.block_tokens};
}

int DecodeScheduler::PagesToGrow(const Sequence& sequence) const {
  int pages = 0;
  const auto [first, last] = NextBlocks(sequence);
  for (int index = first; index <= last; ++index) {
    if (NeedsBlock(sequence, index)) {
      pages += pool_.shape().pages();
    } else if (LacksWindow(sequence, index)) {
      pages += pool_.shape().window_pages;
    }
  }
  return pages;
}

bool DecodeScheduler::LacksWindow(const Sequence& sequence, int index) const {
  if (pool_.shape().recurrent) return !sequence.blocks.has_window(index);
  return pool_.shape().windowed() && index >= sequence.window_end;
}

bool DecodeScheduler::NeedsBlock(const Sequence& sequence, int index) const {
  return index >= sequence.blocks.size() || pool_.RefCount(sequence.blocks.ids()[index]) > 1;
}

bool DecodeScheduler::Grow(const std::vector<Sequence*>& group, StepPlan& plan) {
  for (Sequence* sequence : group) {
    // A step over two blocks needs both their states, and not the one before.
    const auto [first, last] = NextBlocks(*sequence);
    if (sequence->repeated_tokens > 0 && first < last) {
      sequence->blocks.DropWindows(
          pool_.shape().FirstSeenBlock(sequence->computed_tokens, options_.block_tokens));
    }
  }
  while (true) {
    int64_t needed = 0;
    for (const Sequence* sequence : group) needed += PagesToGrow(*sequence);
    if (MakeFree(needed)) break;
    if (!PreemptLastInRank(group)) return false;
  }
  for (Sequence* sequence : group) {
    const auto [first, last] = NextBlocks(*sequence);
    for (int index = first; index <= last; ++index) {
      // A copy before may have left this one the only owner of its block.
      if (NeedsBlock(*sequence, index)) {
        GrowOne(*sequence, index, plan);
      } else if (LacksWindow(*sequence, index)) {
        sequence->window_end = sequence->blocks.AddWindows(index, index + 1);
      }
    }
  }
  return true;
}

void DecodeScheduler::GrowOne(Sequence& sequence, int index, StepPlan& plan) {
  absl::StatusOr<kv::BlockLease> fresh = pool_.Acquire(1, kv::BlockUse::kActive);
  BATON_CHECK(fresh.ok()) << fresh.status();
  if (index < sequence.blocks.size()) {
    // Copy on write: the block that is written next is the last one, and shared.
    BATON_CHECK_EQ(index + 1, sequence.blocks.size());
    const std::vector<int32_t> from = sequence.blocks.PagesOf(index), to = fresh->PagesOf(0);
    plan.copy_sources.insert(plan.copy_sources.end(), from.begin(), from.end());
    plan.copy_targets.insert(plan.copy_targets.end(), to.begin(), to.end());
    sequence.blocks.SplitAt(index);
  }
  sequence.blocks.Append(*std::move(fresh));
  sequence.window_end = sequence.blocks.size();
}

bool DecodeScheduler::PreemptLastInRank(const std::vector<Sequence*>& group) {
  // An evicted sequence frees its blocks soon: no other needs to be preempted.
  for (const auto& [rank, sequence] : admitted_) {
    if (sequence->state == Sequence::State::kEvicted) return false;
  }
  const auto last = admitted_.rbegin();
  BATON_CHECK(last != admitted_.rend());
  Sequence& victim = *last->second;
  if (&victim != group.back()) return PreemptOrEvict(victim);
  const bool alone = admitted_.begin()->second.get() == group.front();
  // It goes on when the fetches and jobs have ended: preempting it would free nothing for it.
  if (alone && events_.lent_blocks != nullptr && events_.lent_blocks() > 0) {
    growth_waits_ = true;
    return false;
  }
  BATON_CHECK(!alone) << "sequence " << victim.id << " has the pool to itself, and it is too small";
  PreemptOrEvict(victim);
  return false;
}

bool DecodeScheduler::PreemptOrEvict(Sequence& victim) {
  if (victim.state == Sequence::State::kReceiving) {
    Evict(victim, /*ended=*/false);
    return false;
  }
  if (victim.state == Sequence::State::kEvicted) return false;
  if (victim.call->beams != nullptr && victim.call->beams->started()) {
    PreemptCall(*victim.call);
  } else {
    Preempt(victim);
  }
  return true;
}

void DecodeScheduler::EnforceLongContextShare() {
  while (LongPages() > LongBound()) {
    Sequence* last = nullptr;
    bool lone = true;
    for (const auto& [rank, sequence] : admitted_) {
      if (!IsLong(*sequence)) continue;
      if (sequence->state == Sequence::State::kEvicted) return;
      lone &= last == nullptr || last->call == sequence->call;
      last = sequence.get();
    }
    if (lone || !PreemptOrEvict(*last)) return;
  }
}

void DecodeScheduler::Preempt(Sequence& sequence) {
  ++preemption_count_;
  ++sequence.preemptions;
  // A step in flight has gone on with the state.
  if (!pool_.shape().recurrent || LastStepOf(sequence) == nullptr) {
    events_.before_preemption(sequence);
  }
  InsertIntoCache(sequence);
  std::unique_ptr<Sequence> owned = TakeAdmitted(sequence);
  owned->blocks.Release();
  owned->computed_tokens = 0;
  owned->repeated_tokens = 0;
  owned->drafter = nullptr;  // so drafters have no more tokens than the pool
  waiting_.PushResumed(std::move(owned));
}

void DecodeScheduler::PreemptCall(Call& call) {
  Restart(call);
  for (Sequence* sequence : SequencesOf(call)) Preempt(*sequence);
}

void DecodeScheduler::Restart(Call& call) {
  call.beams->Restart();
  bool first = true;
  for (Sequence* sequence : SequencesOf(call)) {
    InsertIntoCache(*sequence);
    if (std::exchange(first, false)) {
      sequence->tokens.resize(static_cast<size_t>(call.request_tokens));
      sequence->computed_tokens = std::min(sequence->computed_tokens, call.request_tokens - 1);
      // The state behind a partial block has gone on.
      if (pool_.shape().recurrent) {
        sequence->computed_tokens -= sequence->computed_tokens % options_.block_tokens;
      }
      continue;
    }
    Forget(*sequence);
    // The plan being made may still refer to it.
    dropped_.push_back(TakeAdmitted(*sequence));
    dropped_.back()->blocks.Release();
    dropped_.back()->state = Sequence::State::kWaiting;
  }
}

void DecodeScheduler::Computed(const Chunk& chunk) {
  BATON_CHECK_EQ(chunk.sequence->computed_tokens, chunk.begin);
  Sequence& sequence = *chunk.sequence;
  const bool of_prompt = chunk.end - chunk.begin > 1 + sequence.repeated_tokens;
  sequence.computed_tokens = chunk.end;
  sequence.repeated_tokens = 0;
  // A prompt that is computed here is cached for others at once.
  if (of_prompt || chunk.end == sequence.call->request_tokens) InsertIntoCache(sequence);
  LeaveWindows(sequence);
}

Sequence* DecodeScheduler::Fork(const Sequence& parent, std::unique_ptr<Sequence> sequence) {
  sequence->state = Sequence::State::kRunning;
  sequence->submission = parent.submission;
  sequence->blocks = parent.blocks.Share(0, parent.blocks.size(), kv::BlockUse::kActive);
  sequence->computed_tokens = parent.computed_tokens;
  sequence->window_end = parent.window_end;
  ++call_sizes_[sequence->call->id];
  Sequence* forked = sequence.get();
  const bool added = admitted_.emplace(forked->Rank(), std::move(sequence)).second;
  BATON_CHECK(added) << "two sequences of rank " << forked->sampling.choice;
  return forked;
}

std::unique_ptr<Sequence> DecodeScheduler::TakeAdmitted(Sequence& sequence) {
  auto node = admitted_.extract(sequence.Rank());
  BATON_CHECK(!node.empty() && node.mapped().get() == &sequence) << "sequence " << sequence.id;
  LeaveInflightSteps(sequence);
  return std::move(node.mapped());
}

void DecodeScheduler::Forget(const Sequence& sequence) {
  const auto size = call_sizes_.find(sequence.call->id);
  BATON_CHECK(size != call_sizes_.end());
  if (--size->second > 0) return;
  call_sizes_.erase(size);
  const auto use = tenants_.find(sequence.call->tenant);
  BATON_CHECK(use != tenants_.end());
  use->second.tokens -= sequence.call->request_tokens;
  if (--use->second.requests == 0) tenants_.erase(use);
}

void DecodeScheduler::Remove(Sequence& sequence) {
  Forget(sequence);
  if (sequence.state == Sequence::State::kWaiting) {
    waiting_.Take(sequence);
    return;
  }
  BATON_CHECK(sequence.state == Sequence::State::kRunning) << "removal of " << sequence.id;
  InsertIntoCache(sequence);
  TakeAdmitted(sequence);
}

void DecodeScheduler::Evict(Sequence& sequence, bool ended) {
  BATON_CHECK(sequence.state == Sequence::State::kReceiving ||
              sequence.state == Sequence::State::kEvicted);
  sequence.ended |= ended;
  if (sequence.state == Sequence::State::kEvicted) return;
  sequence.state = Sequence::State::kEvicted;
  if (!ended) {
    ++preemption_count_;
    ++sequence.preemptions;
  }
  events_.cancel_transfer(sequence);
}

Sequence* DecodeScheduler::Find(uint64_t id) {
  for (Sequence* sequence : All()) {
    if (sequence->id == id) return sequence;
  }
  return nullptr;
}

std::vector<Sequence*> DecodeScheduler::SequencesOf(const Call& call) {
  std::vector<Sequence*> found;
  for (Sequence* sequence : All()) {
    if (sequence->call.get() == &call) found.push_back(sequence);
  }
  return found;
}

std::vector<Sequence*> DecodeScheduler::All() {
  std::vector<Sequence*> all;
  for (const auto& [rank, sequence] : admitted_) all.push_back(sequence.get());
  for (Sequence* sequence : waiting_.All()) all.push_back(sequence);
  return all;
}

void DecodeScheduler::Charge(const Call& call, int64_t tokens) {
  waiting_.Charge(call.priority, call.tenant, tokens);
}

int DecodeScheduler::receiving_count() const {
  return static_cast<int>(std::count_if(admitted_.begin(), admitted_.end(), [](const auto& entry) {
    return entry.second->state != Sequence::State::kRunning;
  }));
}

int DecodeScheduler::running_count() const {
  return static_cast<int>(admitted_.size()) - receiving_count();
}

void DecodeScheduler::CheckIntegrity() const {
  int64_t tokens = 0;
  std::map<uint64_t, int> call_sizes;
  const std::vector<Sequence*> waiting = waiting_.All();
  for (const Sequence* sequence : waiting) {
    BATON_CHECK(sequence->state == Sequence::State::kWaiting);
    BATON_CHECK(sequence->blocks.empty());
    tokens += static_cast<int64_t>(sequence->tokens.size());
    ++call_sizes[sequence->call->id];
  }
  BATON_CHECK_EQ(static_cast<int>(waiting.size()), waiting_.count());
  BATON_CHECK_EQ(tokens, waiting_tokens());
  for (const auto& [rank, sequence] : admitted_) {
    BATON_CHECK(sequence->state != Sequence::State::kWaiting);
    BATON_CHECK(rank == sequence->Rank());
    BATON_CHECK_GE(sequence->blocks.size(), BlocksFor(sequence->computed_tokens));
    if (sequence->state == Sequence::State::kRunning) {
      const int first =
          pool_.shape().FirstSeenBlock(sequence->computed_tokens, options_.block_tokens);
      BATON_CHECK_EQ(sequence->blocks.LackingWindows(first, BlocksFor(sequence->computed_tokens)),
                     0);
    }
    ++call_sizes[sequence->call->id];
  }
  BATON_CHECK(call_sizes == call_sizes_);
  BATON_CHECK_LE(UsedSlots(), options_.max_num_seqs);
}

}  // namespace baton::decode_worker
