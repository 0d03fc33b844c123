// The part of the loop that plans steps, has the engine run them, and takes their results.
//
// Where the engine can, the next step is launched before this one's tokens are known, and the loop
// does everything else while the device computes: it sends tokens, takes in messages and plans one
// step late. A sequence that ends at a stop token has then one more draw under way, which nobody
// looks at. Those whose KV has come join such a step; whatever needs more than a token each, or the
// host to draw, waits until nothing is under way.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "decode_worker/loop.h"
#include "decode_worker/step_entry.h"

namespace baton::decode_worker {

bool DecodeLoop::Step() {
  if (flights_.empty()) {
    const StepPlan plan = PlanStep();
    if (plan.chunks.empty()) return plan.preempted;
    Launch(plan, MakeBatch(plan));
  }
  if (flights_.front().ahead) {
    if (const std::optional<StepPlan> next = scheduler_.PlanAhead()) LaunchAhead(*next);
  }
  Land();
  return true;
}

StepPlan DecodeLoop::PlanStep() {
  StepPlan plan = scheduler_.PlanStep(prompt_budget_.Tokens());
  if (scheduler_.preemption_count() > preemptions_told_) {
    metrics_.Preempted(scheduler_.preemption_count() - preemptions_told_);
    preemptions_told_ = scheduler_.preemption_count();
  }
  for (const auto& [sequence, tokens] : plan.found) {
    metrics_.PrefixCache(0, tokens);  // asked for at the admission
    if (sequence->at_first_admission()) sequence->call->transfer.cached_prompt_tokens += tokens;
  }
  return plan;
}

engine::Batch DecodeLoop::MakeBatch(const StepPlan& plan) {
  engine::Batch batch;
  for (const Chunk& chunk : plan.chunks) {
    batch.entries.push_back(chunk.drawn_by >= 0 ? MakeEntryAhead(chunk) : MakeEntry(chunk));
  }
  return batch;
}

// Whoever has joined may want what only the host can draw: then all wait.
void DecodeLoop::LaunchAhead(const StepPlan& plan) {
  const engine::Batch batch = MakeBatch(plan);
  if (engine_.RunsAhead(batch)) Launch(plan, batch);
}

void DecodeLoop::Launch(const StepPlan& plan, const engine::Batch& batch) {
  Flight flight;
  flight.begin = clock_.SinceStart();
  if (!plan.copy_sources.empty()) engine_.CopyBlocks(plan.copy_sources, plan.copy_targets);
  for (const Chunk& chunk : plan.chunks) {
    flight.calls.push_back(chunk.sequence->call);
    const int tokens = chunk.end - chunk.begin;
    flight.decoding += tokens == 1 ? 1 : 0;
    // One token may be the last of a prompt. More are one, or what a preempted answer had.
    const bool of_prompt = tokens > 1 || chunk.begin < chunk.sequence->call->request_tokens;
    flight.prompt_tokens += of_prompt ? tokens : 0;
  }
  flight.rows = batch.rows();
  flight.ahead = engine_.RunsAhead(batch);
  scheduler_.Launched(plan);
  if (flight.ahead) {
    engine_.Launch(batch);
  } else {
    flight.results = engine_.Step(batch);
  }
  flights_.push_back(std::move(flight));
}

void DecodeLoop::Land() {
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  if (flight.ahead) flight.results = engine_.Collect();
  const std::vector<Chunk> chunks = scheduler_.Landed();
  const absl::Duration now = clock_.SinceStart();
  // The device turned to it when it had done with the step before.
  const absl::Duration took = now - std::max(flight.begin, landed_at_);
  landed_at_ = now;
  prompt_budget_.Stepped(flight.rows - flight.decoding, flight.decoding, took);
  metrics_.Stepped(took, static_cast<int>(chunks.size()));
  step_times_.Took(chunks, took, now);
  if (flight.decoding == 0) estimate_.Prefilled(flight.rows, took);
  metrics_.PrefilledHere(flight.prompt_tokens);
  // First, since results may add and remove sequences.
  for (const Chunk& chunk : chunks) {
    if (chunk.sequence != nullptr) scheduler_.Computed(chunk);
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    Call& call = *flight.calls[i];
    // It may have left while the step was under way, or another choice's result may have ended the
    // call, and with it the sequence.
    if (chunks[i].sequence == nullptr || !calls_.contains(call.id)) continue;
    if (call.beams == nullptr || !chunks[i].draws()) {
      TakeResult(chunks[i], flight.results[i]);
      continue;
    }
    std::vector<engine::StepResult*> of_beams;
    std::vector<Sequence*> beams;
    for (; i < chunks.size() && flight.calls[i].get() == &call; ++i) {
      of_beams.push_back(&flight.results[i]);
      beams.push_back(chunks[i].sequence);
    }
    --i;
    AdvanceBeams(call, std::move(of_beams), std::move(beams));
  }
}

}  // namespace baton::decode_worker
