// The part of the loop that plans steps, has the engine run them, and takes their results.
//
// Where the engine can, the next step is launched before this one's tokens are known, and the loop
// sends tokens, handles messages and plans while the device computes. A sequence that ends at a
// stop token then has one more draw in flight, which is ignored. Sequences whose KV has come join
// such a step; prompts, draws on the host, and drafts wait until no step is in flight.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "decode_worker/loop.h"
#include "decode_worker/step_entry.h"

namespace baton::decode_worker {

bool DecodeLoop::Step() {
  if (inflight_.empty()) {
    StepPlan plan = PlanStep();
    PlanDrafts(plan);
    const bool has_jobs = PlanJobs(plan);
    if (plan.chunks.empty() && !has_jobs) return plan.preempted;
    Launch(plan, MakeBatch(plan), has_jobs);
  }
  if (inflight_.front().ahead && jobs_.empty() &&
      !speculation_.Promises(RoomForDrafts(scheduler_.in_flight()), prompt_budget_.Tokens(),
                             step_times_, scheduler_)) {
    if (std::optional<StepPlan> next = scheduler_.PlanAhead()) LaunchAhead(*std::move(next));
  }
  Complete();
  return true;
}

StepPlan DecodeLoop::PlanStep() {
  // Where jobs and prompts of answers are to be computed, each gets half of the budget, and what
  // the answers' prompts do not take.
  const int block_tokens = options_.scheduler.block_tokens;
  const int budget = prompt_budget_.Tokens();
  StepPlan plan = jobs_.empty()
                      ? scheduler_.PlanStep(budget)
                      : scheduler_.PlanStep(std::max(block_tokens, budget / 2), block_tokens);
  if (scheduler_.preemption_count() > reported_preemptions_) {
    const int64_t count = scheduler_.preemption_count() - reported_preemptions_;
    const int64_t swapped = std::exchange(swapped_preemptions_, 0);
    metrics_.Preempted(/*swapped=*/true, swapped);
    metrics_.Preempted(/*swapped=*/false, count - swapped);
    reported_preemptions_ = scheduler_.preemption_count();
  }
  for (const auto& [sequence, tokens] : plan.cache_hits) {
    metrics_.PrefixCache(0, tokens);  // their look-up was counted at the admission
    if (sequence->at_first_admission()) sequence->call->transfer.cached_prompt_tokens += tokens;
  }
  return plan;
}

int DecodeLoop::RoomForDrafts(const std::vector<Chunk>& chunks) const {
  const SchedulerOptions& scheduler = options_.scheduler;
  int room = scheduler.max_num_batched_tokens;
  if (!jobs_.empty()) room -= scheduler.block_tokens;
  // A step has logits of so many rows at once; for more, it would read the LM head again.
  int logit_rows = scheduler.max_num_seqs;
  for (const Chunk& chunk : chunks) {
    if (chunk.sequence == nullptr) continue;  // it has ended while its step is in flight
    room -= chunk.rows();
    logit_rows -= chunk.drawn_by || chunk.draws() ? 1 : 0;
  }
  room = std::min(room, logit_rows);
  // With states, the next step computes those that are drawn again, beside a token of each sequence
  // and prompts.
  if (pool_.shape().recurrent) {
    room = std::min(room, (scheduler.max_num_batched_tokens - scheduler.max_num_seqs) / 2);
  }
  return room;
}

void DecodeLoop::PlanDrafts(StepPlan& plan) {
  if (!speculation_.on()) return;
  // What jobs will have of the step.
  PrefillWork jobs = jobs_.remaining_work();
  if (const double budget = prompt_budget_.Tokens(); jobs.tokens > budget) {
    jobs.pairs *= budget / jobs.tokens;
    jobs.tokens = budget;
  }
  const absl::Duration began = clock_.SinceStart();
  speculation_.AddDrafts(RoomForDrafts(plan.chunks), prompt_budget_.Tokens(), jobs, step_times_,
                         scheduler_, plan);
  if (options_.draft_engine == nullptr) return;
  drafting_ = clock_.SinceStart() - began;
  metrics_.Drafting(drafting_);
}

bool DecodeLoop::PlanJobs(const StepPlan& plan) {
  if (jobs_.empty()) return false;
  int rows = 0, prompt_tokens = 0;
  for (const Chunk& chunk : plan.chunks) {
    rows += chunk.rows();
    prompt_tokens += chunk.decodes ? 0 : chunk.rows();
  }
  prefill::StepRoom room;
  room.tokens =
      std::min(std::max(prompt_budget_.Tokens() - prompt_tokens, options_.scheduler.block_tokens),
               options_.scheduler.max_num_batched_tokens - rows);
  // common/prefill/scheduler.h says why.
  const int most_jobs = options_.scheduler.max_num_seqs;
  room.free_jobs = most_jobs - scheduler_.used_slots();
  room.spare_pages = scheduler_.running_slots() * pool_.shape().pages();
  const bool head_is_late = head_waits_since_ && clock_.SinceStart() - *head_waits_since_ >=
                                                     prefill::PrefillJobs::kLongestWait;
  if (head_is_late || scheduler_.growth_waits()) {
    room.pages = 0;
  } else if (scheduler_.waiting_count() > 0) {
    room.pages = pool_.counts().total / 2;
    room.jobs = std::max(1, most_jobs / 2);
  }
  const bool planned = jobs_.Plan(room);
  // At once: a loop without a step sleeps until a message comes.
  if (jobs_.blocked()) scheduler_.EvictExcess();
  return planned;
}

engine::Batch DecodeLoop::MakeBatch(StepPlan& plan) {
  engine::Batch batch;
  const int block_tokens = options_.scheduler.block_tokens;
  for (const Chunk& chunk : plan.chunks) {
    batch.entries.push_back(chunk.drawn_by ? MakeEntryAhead(chunk, block_tokens)
                                           : MakeEntry(chunk, block_tokens));
    batch.entries.back().hidden_states =
        chunk.draws() && !chunk.drawn_by && speculation_.WantsStates(*chunk.sequence);
  }
  AddMasks(plan, batch);
  return batch;
}

// A mask depends on all tokens before the draw, so such an entry is drawn on the host, and no step
// is launched ahead of it. Drafts that do not follow the grammar are left out.
void DecodeLoop::AddMasks(StepPlan& plan, engine::Batch& batch) {
  masks_.clear();
  masks_after_.clear();
  mask_errors_.clear();
  std::vector<size_t> chunks;
  std::vector<grammar::StructuredOutput::Item> items;
  for (size_t i = 0; i < plan.chunks.size(); ++i) {
    const Chunk& chunk = plan.chunks[i];
    const Call& call = *chunk.sequence->call;
    if (call.grammar == nullptr || chunk.drawn_by || !chunk.draws()) continue;
    chunks.push_back(i);
    items.push_back({.session = chunk.sequence->id,
                     .grammar = call.grammar.get(),
                     .tokens = absl::MakeConstSpan(chunk.sequence->tokens)
                                   .subspan(static_cast<size_t>(call.prompt_tokens)),
                     .drafts = chunk.drafts});
  }
  if (items.empty()) return;
  const absl::Duration began = clock_.SinceStart();
  masks_ = options_.structured_output->Masks(items);
  int computed = 0;
  for (const auto& of_item : masks_)
    computed += of_item.ok() ? static_cast<int>(of_item->size()) : 1;
  speculation_.OnMasks(computed, clock_.SinceStart() - began);
  masks_after_.reserve(chunks.size());  // entries refer to its elements
  for (size_t i = 0; i < chunks.size(); ++i) {
    Chunk& chunk = plan.chunks[chunks[i]];
    engine::BatchEntry& entry = batch.entries[chunks[i]];
    if (!masks_[i].ok()) {
      mask_errors_.emplace_back(chunks[i], masks_[i].status());
      CutDrafts(0, chunk, entry);
      continue;
    }
    const std::vector<grammar::StructuredOutput::Mask>& masks = *masks_[i];
    entry.history.allowed = masks.front();
    CutDrafts(masks.size() - 1, chunk, entry);
    if (masks.size() == 1) continue;
    auto& after = masks_after_.emplace_back(masks.begin() + 1, masks.end());
    entry.allowed_after = after;
  }
}

void DecodeLoop::CutDrafts(size_t count, Chunk& chunk, engine::BatchEntry& entry) {
  if (chunk.drafts.size() <= count) return;
  chunk.drafts.resize(count);
  entry.drafts = chunk.drafts;
  if (count > 0) return;
  scheduler_.GiveBackDraftBlocks(*chunk.sequence);
  engine::SetBlocks(chunk.sequence->blocks, &entry, options_.scheduler.block_tokens);
}

// A sequence that joined may need a draw on the host: then the step is not launched ahead.
void DecodeLoop::LaunchAhead(StepPlan plan) {
  engine::Batch batch = MakeBatch(plan);
  if (engine_.RunsAhead(batch)) Launch(plan, std::move(batch), /*has_jobs=*/false);
}

void DecodeLoop::Launch(const StepPlan& plan, engine::Batch batch, bool has_jobs) {
  InflightStep step;
  if (has_jobs) {
    jobs_.AddTo(batch);
    step.has_jobs = true;
    step.jobs = jobs_.planned_work();
  }
  step.begin = clock_.SinceStart();
  if (!plan.copy_sources.empty()) engine_.CopyPages(plan.copy_sources, plan.copy_targets);
  int answer_rows = 0;
  for (const Chunk& chunk : plan.chunks) {
    step.calls.push_back(chunk.sequence->call);
    step.decoding += chunk.decodes ? 1 : 0;
    answer_rows += chunk.decodes ? chunk.rows() : 0;
    // The last of a prompt, too, is computed by what decodes.
    const bool of_prompt = !chunk.decodes || chunk.begin < chunk.sequence->call->request_tokens;
    step.prompt_tokens += of_prompt ? chunk.end - chunk.begin : 0;
  }
  step.prompt_rows = batch.rows() - answer_rows;
  step.ahead = !has_jobs && engine_.RunsAhead(batch);
  step.mask_errors = std::move(mask_errors_);
  scheduler_.OnLaunch(plan);
  if (step.ahead) {
    engine_.Launch(batch);
  } else {
    // What sends the jobs' KV by layers only reads what mid-step messages read of them.
    model::LayerObserver* const observer = has_jobs ? jobs_.OnStepBegins() : nullptr;
    step.results = mid_step_->During([&] {
      auto results = engine_.Step(batch, observer);
      step.ended_at = clock_.SinceStart();
      return results;
    });
  }
  inflight_.push_back(std::move(step));
}

void DecodeLoop::Complete() {
  InflightStep step = std::move(inflight_.front());
  inflight_.pop_front();
  if (step.ahead) {
    step.results = mid_step_->During([&] {
      auto results = engine_.Collect();
      step.ended_at = clock_.SinceStart();
      return results;
    });
  }
  for (const auto& [chunk, error] : step.mask_errors) step.results[chunk].tokens = error;
  const std::vector<Chunk> chunks = scheduler_.OnComplete();
  const absl::Duration now = step.ended_at;
  // The device began it when the step before was over.
  const absl::Duration took = now - std::max(step.begin, last_completed_at_);
  // Where a step waits for the draws before it, the host's work is between the two. A longer time
  // is one without work.
  const absl::Duration between =
      std::clamp(step.begin - last_completed_at_ - std::exchange(drafting_, absl::ZeroDuration()),
                 absl::ZeroDuration(), absl::Milliseconds(1));
  last_completed_at_ = now;
  const bool drafted = std::any_of(chunks.begin(), chunks.end(),
                                   [](const Chunk& chunk) { return !chunk.drafts.empty(); });
  // The budget is for what answers take without drafts.
  if (!drafted || step.prompt_rows > 0) {
    prompt_budget_.OnStep(step.prompt_rows, step.decoding, took);
  }
  if (!chunks.empty()) metrics_.Stepped(took, static_cast<int>(chunks.size()));
  step_times_.AddStep(chunks, step.jobs, took, between, now);
  if (step.decoding == 0) estimate_.Prefilled(step.prompt_rows, took);
  metrics_.PrefilledHere(step.prompt_tokens);
  computed_prompt_tokens_ += step.prompt_tokens;
  // First, since results may add and remove sequences.
  for (const Chunk& chunk : chunks) {
    if (chunk.sequence != nullptr) scheduler_.Computed(chunk);
  }
  if (step.has_jobs) jobs_.OnStepEnded(absl::MakeSpan(step.results).subspan(chunks.size()));
  for (size_t i = 0; i < chunks.size(); ++i) {
    Call& call = *step.calls[i];
    // The sequence may have been removed while the step was in flight, or another choice's result
    // may have ended the call.
    if (chunks[i].sequence == nullptr || !calls_.contains(call.id)) continue;
    if (call.beams == nullptr || !chunks[i].draws()) {
      TakeResult(chunks[i], step.results[i]);
      continue;
    }
    std::vector<engine::StepResult*> of_beams;
    std::vector<Sequence*> beams;
    for (; i < chunks.size() && step.calls[i].get() == &call; ++i) {
      of_beams.push_back(&step.results[i]);
      beams.push_back(chunks[i].sequence);
    }
    --i;
    AdvanceBeams(call, std::move(of_beams), std::move(beams));
  }
}

}  // namespace baton::decode_worker
