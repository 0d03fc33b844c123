// Speculative decoding: which drafts a step computes, beside the tokens that it has to.
//
// A step computes the sequence's last token and its drafts, a row each, and draws a token behind
// each. A draw is a function of the logits, which no other row of the step changes, and of seed,
// choice and position (common/model/sampler.h). So the draws up to the first that differs from its
// draft are those that steps of one token would have made, sampled ones, too: nothing is rejected
// by chance, and no answer shows whether there were drafts.
//
// Drafts come from what the sequence and recent answers of its tenant have said before
// (drafts/drafter.h), or from a model (model_drafter.h), with an estimate of how likely
// each is to be drawn. They are computed where they pay: a step of R rows that draws E tokens takes
// t(R), as measured (StepTimes), so one row more that is drawn with probability p makes tokens
// faster where
//
//   (E + p) / t(R + 1) > E / t(R),  which is  p > E (t(R + 1) - t(R)) / t(R).
//
// If there is a grammar, the cost of a row includes its mask. A recurrent model computes a draft
// that is drawn a second time, so its row costs 1 + p rows. The time that steps with drafts take
// beyond their rows is added once a step. The time of a model that drafts is added where it is
// decided how many drafts it makes; those that are made then cost their rows.
//
// Of all sequences, the draft that is most likely to be drawn is taken first. At a batch that fills
// the processor a row costs its full share of the step, and nothing but near certainties is
// drafted; a batch that waits for memory has rows to spare. Estimates of drafts that no model makes
// also learn while nothing is drafted, so a text that begins to repeat itself is noticed.
//
// Thread: owned by the loop.
#ifndef BATON_DECODE_WORKER_SPECULATION_H_
#define BATON_DECODE_WORKER_SPECULATION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/prefill_work.h"
#include "common/engine/engine.h"
#include "decode_worker/drafts/acceptance_table.h"
#include "decode_worker/drafts/answer_memory.h"
#include "decode_worker/drafts/draft.h"
#include "decode_worker/drafts/speculation_options.h"
#include "decode_worker/model_drafter.h"
#include "decode_worker/scheduler.h"
#include "decode_worker/sequence.h"
#include "decode_worker/step_price.h"
#include "decode_worker/step_times.h"

namespace baton::decode_worker {

class Speculation {
 public:
  // draft_engine: of the model that drafts in modes kDraft and kMtp, with `draft_options` but for
  // their kind; else null. It and the clock must outlive this.
  Speculation(const SpeculationOptions& options, engine::Engine* draft_engine,
              DraftModel::Options draft_options, const Clock& clock);

  // For tests.
  void CheckIntegrity() const {
    if (model_ != nullptr) model_->model().CheckIntegrity();
  }

  bool on() const { return options_.mode != SpeculationOptions::Mode::kOff; }

  // Gives chunks of a planned step drafts, at most `room` rows together. `jobs`: prompts that the
  // step computes beside the plan's. `catch_up_tokens`: as ModelDrafter::Propose has it.
  void AddDrafts(int room, int catch_up_tokens, const PrefillWork& jobs, const StepTimes& times,
                 DecodeScheduler& scheduler, StepPlan& plan);
  // Whether a step is to return the hidden states of the sequence's tokens, for AddStates.
  bool WantsStates(const Sequence& sequence) const;
  // Takes the hidden states of the chunk's last token and of its drafts, if the result has them.
  // The tokens that the result draws are not the sequence's yet.
  void AddStates(const Chunk& chunk, const engine::StepResult& result);
  // So many masks of grammars have been computed in a time that is not part of a step's.
  void OnMasks(int count, absl::Duration took);
  // True if sequences of the step in flight, whose draws are not known, would now get drafts: then
  // a step that is planned when they are known is worth more than one that is planned before.
  // `room` and `catch_up_tokens` as above.
  bool Promises(int room, int catch_up_tokens, const StepTimes& times,
                const DecodeScheduler& scheduler);
  // The sequence has ended, or leaves the worker's memory.
  void Ended(const Sequence& sequence);
  // Evicts the draft model's cached blocks that no sequence uses.
  void FlushCache() {
    if (model_ != nullptr) model_->FlushCache();
  }

 private:
  struct Candidate {
    size_t chunk = 0;  // of the plan
    Draft draft;
    size_t taken = 0;
  };
  bool DraftsFor(const Sequence& sequence) const;
  Draft Propose(Sequence& sequence, int most);
  // Bounds on a chunk of the sequence that decodes; 0: none.
  int MostDrafts(const Sequence& sequence, const DecodeScheduler& scheduler) const;
  // Takes the drafts that pay, the likeliest first.
  static void Choose(const std::vector<Chunk>& chunks, int room, StepPrice price,
                     std::vector<Candidate>& candidates);

  const SpeculationOptions options_;
  double mask_seconds_ = 0;  // of one, a mean of the last ones
  int64_t to_index_ = 0;     // tokens that drafters may still index in this step
  AcceptanceTable acceptance_;
  AnswerMemory memory_;
  std::unique_ptr<ModelDrafter> model_;  // null: drafts come from texts
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_SPECULATION_H_
