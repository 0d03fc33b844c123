// The part of DecodeScheduler that tracks steps in flight and plans the next one ahead.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
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
  plan.chunks.push_back({&sequence, position, position + 1, drawn_by});
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
    if (!chunks[i].draws() || sequence.draws > 1 || sequence.call->beams != nullptr) {
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
