// The part of DecodeScheduler that tracks steps in flight, plans the next one ahead, and gives
// drafts their place in a step.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "decode_worker/beam_search.h"
#include "decode_worker/scheduler.h"

namespace baton::decode_worker {

bool DecodeScheduler::AddAhead(Sequence& sequence, int position, std::optional<int> drawn_by,
                               StepPlan& plan) const {
  const int index = position / options_.block_tokens;
  if (index < sequence.blocks.size() &&
      pool_.RefCount(sequence.blocks.ids()[static_cast<size_t>(index)]) > 1) {
    return false;
  }
  if (index < sequence.blocks.size() && LacksWindow(sequence, index)) return false;
  plan.chunks.push_back({.sequence = &sequence,
                         .begin = position,
                         .end = position + 1,
                         .drawn_by = drawn_by,
                         .decodes = true});
  return true;
}

std::optional<StepPlan> DecodeScheduler::PlanAhead() {
  BATON_CHECK_EQ(inflight_.size(), size_t{1});
  if (LongPages() > LongBound()) return std::nullopt;
  StepPlan plan;
  absl::flat_hash_set<const Sequence*> in_flight;
  const std::vector<Chunk>& chunks = inflight_.front().chunks;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].sequence == nullptr) continue;
    Sequence& sequence = *chunks[i].sequence;
    if (!chunks[i].draws() || !chunks[i].drafts.empty() || sequence.draws > 1 ||
        sequence.call->beams != nullptr) {
      return std::nullopt;
    }
    in_flight.insert(&sequence);
    if (sequence.generated_tokens() + 1 == sequence.call->max_tokens) continue;
    if (!AddAhead(sequence, static_cast<int>(sequence.tokens.size()), static_cast<int>(i), plan)) {
      return std::nullopt;
    }
  }
  for (const auto& [rank, sequence] : admitted_) {
    if (sequence->state != Sequence::State::kRunning || in_flight.contains(sequence.get()))
      continue;
    if (sequence->remaining_tokens() != 1 || sequence->draws > 1 ||
        sequence->call->beams != nullptr ||
        !AddAhead(*sequence, sequence->computed_tokens, std::nullopt, plan)) {
      return std::nullopt;
    }
  }
  const auto grows = [this](const Chunk& chunk) {
    return chunk.begin / options_.block_tokens == chunk.sequence->blocks.size();
  };
  if (plan.chunks.empty() ||
      !MakeFree(std::count_if(plan.chunks.begin(), plan.chunks.end(), grows) *
                pool_.shape().pages())) {
    return std::nullopt;
  }
  for (const Chunk& chunk : plan.chunks) {
    if (!grows(chunk)) continue;
    absl::StatusOr<kv::BlockLease> fresh = pool_.Acquire(1, kv::BlockUse::kActive);
    BATON_CHECK(fresh.ok()) << fresh.status();
    chunk.sequence->blocks.Append(*std::move(fresh));
    chunk.sequence->window_end = chunk.sequence->blocks.size();
  }
  return plan;
}

int DecodeScheduler::MaxDrafts(const Sequence& sequence) const {
  const Call& call = *sequence.call;
  if (sequence.draws > 1 || call.beams != nullptr) return 0;
  // Log probabilities of a prompt come with its last token.
  if (call.prompt_logprobs && !call.answered) return 0;
  // One token of the answer is drawn behind the last draft.
  const int left = call.max_tokens - sequence.generated_tokens() - 1;
  // What is computed again must not reach beyond the block behind that of the state.
  return pool_.shape().recurrent ? std::min(left, options_.block_tokens - 1) : left;
}

void DecodeScheduler::AddDrafts(absl::Span<const int32_t> drafts, Chunk& chunk) {
  Sequence& sequence = *chunk.sequence;
  int count = static_cast<int>(drafts.size());
  BATON_CHECK(chunk.decodes && !chunk.drawn_by);
  BATON_CHECK_LE(count, std::max(0, MaxDrafts(sequence)));
  const kv::BlockShape& shape = pool_.shape();
  const int lacking = BlocksFor(int64_t{chunk.end} + count) - sequence.blocks.size();
  if (lacking > 0) {
    // No state goes on over drafts.
    const int with_windows = shape.recurrent ? 0 : lacking;
    const int64_t pages = shape.PagesOf(lacking, with_windows);
    const int evictable = cache_ != nullptr ? cache_->evictable_page_count() : 0;
    if (pool_.counts().free + evictable >= pages + GrowthPages() && MakeFree(pages)) {
      absl::StatusOr<kv::BlockLease> fresh =
          pool_.Acquire(lacking, kv::BlockUse::kActive, 0, with_windows);
      BATON_CHECK(fresh.ok()) << fresh.status();
      sequence.blocks.Append(*std::move(fresh));
      if (!shape.recurrent) sequence.window_end = sequence.blocks.size();
    } else {
      count = sequence.blocks.size() * options_.block_tokens - chunk.end;
    }
  }
  chunk.drafts.assign(drafts.begin(), drafts.begin() + count);
}

void DecodeScheduler::EndDrafts(Sequence& sequence, int count) {
  if (pool_.shape().recurrent) {
    sequence.repeated_tokens = count;
  } else {
    sequence.computed_tokens += count;
    LeaveWindows(sequence);
  }
  BATON_CHECK(sequence.decodes());
  GiveBackDraftBlocks(sequence);
}

void DecodeScheduler::GiveBackDraftBlocks(Sequence& sequence) {
  const int blocks = BlocksFor(static_cast<int64_t>(sequence.tokens.size()));
  if (blocks >= sequence.blocks.size()) return;
  sequence.blocks.SplitAt(blocks);
  sequence.window_end = std::min(sequence.window_end, blocks);
}

void DecodeScheduler::OnLaunch(const StepPlan& plan) {
  inflight_.push_back({.chunks = plan.chunks, .held = {}, .freed_for_admission = 0});
}

std::vector<Chunk> DecodeScheduler::OnComplete() {
  BATON_CHECK(!inflight_.empty());
  std::vector<Chunk> chunks = std::move(inflight_.front().chunks);
  inflight_.pop_front();
  return chunks;
}

DecodeScheduler::InflightStep* DecodeScheduler::LastStepOf(const Sequence& sequence) {
  for (auto step = inflight_.rbegin(); step != inflight_.rend(); ++step) {
    for (const Chunk& chunk : step->chunks) {
      if (chunk.sequence == &sequence) return &*step;
    }
  }
  return nullptr;
}

void DecodeScheduler::HoldBlocks(InflightStep* step, const Sequence& sequence) {
  if (step == nullptr || sequence.blocks.empty()) return;
  step->held.push_back(sequence.blocks.Share(0, sequence.blocks.size(), kv::BlockUse::kActive));
}

void DecodeScheduler::LeaveInflightSteps(const Sequence& sequence) {
  HoldBlocks(LastStepOf(sequence), sequence);
  for (InflightStep& step : inflight_) {
    for (Chunk& chunk : step.chunks) {
      if (chunk.sequence == &sequence) chunk.sequence = nullptr;
    }
  }
}

}  // namespace baton::decode_worker
