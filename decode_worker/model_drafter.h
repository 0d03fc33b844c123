// Which sequences a draft model drafts for, and how many tokens: as many as make tokens faster.
//
// A step of the draft model costs about the same for each further draft, and each further draft is
// less likely to be drawn, so drafts are made one by one for all sequences together, the likeliest
// first, until the next ones do not pay (StepPrice). How likely a draft is, is learned from the
// tokens that are drawn: by the probability that the draft model gave it, and for the sequence.
//
// Before a sequence may draft, the draft model has to compute the tokens that it has so far: its
// prompt, once. That is done, a part beside each step, where the answer will probably be long
// enough to pay for it: as long as the worker's answers are of late.
//
// An MTP head can draft only where the model's hidden states are at hand, which steps return only
// where drafts pay.
//
// While drafts do not pay, one is made now and then, for about a hundredth of the time, so that a
// change of the traffic is noticed.
//
// Thread: owned by the loop.
#ifndef BATON_DECODE_WORKER_MODEL_DRAFTER_H_
#define BATON_DECODE_WORKER_MODEL_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/engine/engine.h"
#include "decode_worker/draft_model.h"
#include "decode_worker/drafts/acceptance_table.h"
#include "decode_worker/drafts/draft.h"
#include "decode_worker/scheduler.h"
#include "decode_worker/step_price.h"

namespace baton::decode_worker {

class ModelDrafter {
 public:
  // The parameters are DraftModel's. REQUIRES: CheckDraftModel is OK.
  ModelDrafter(engine::Engine& engine, const DraftModel::Options& options, const Clock& clock)
      : kind_(options.kind),
        model_(engine, options, clock),
        most_lines_(static_cast<size_t>(engine.max_num_seqs())) {}

  // A chunk that decodes and may have up to `most` drafts, 1 or more.
  struct Wish {
    const Chunk* chunk = nullptr;
    int most = 0;
  };
  // Returns the drafts of each wish, perhaps none: at most `room` together. `price`: of the step
  // without drafts. Runs steps of the draft model, for drafts and for tokens that sequences have
  // and the draft model lacks: up to `catch_up_tokens` of them, or as many as take as long as the
  // step.
  std::vector<Draft> Propose(const std::vector<Wish>& wishes, int room, int catch_up_tokens,
                             const StepPrice& price);
  // Whether Propose would do something for these now.
  bool WouldPropose(const std::vector<Wish>& wishes, int catch_up_tokens, const StepPrice& price);
  // Whether the next step is to return the hidden states of sequences that may have drafts.
  bool wants_states() const { return states_for_steps_ > 0; }
  // Does what DraftModel::AddStates does.
  void AddStates(const Sequence& sequence, int begin, absl::Span<const float> states) {
    model_.AddStates(sequence, begin, states);
  }
  void Ended(const Sequence& sequence);
  void FlushCache() { model_.FlushCache(); }

  const DraftModel& model() const { return model_; }

 private:
  struct Record {
    SequenceAcceptance acceptance;
    // The last drafts made, behind so many tokens.
    size_t behind = 0;
    std::vector<int32_t> drafts;
    std::vector<int> cells;
  };
  // A wish, with what is known of it now.
  struct Line {
    size_t wish = 0;
    const Chunk* chunk = nullptr;
    int most = 0;
    int missing = 0;
    double next = 0;  // probability of the next draft, if those before it are drawn
    DraftModel::Drafting drafting;
    std::vector<int> cells;
    std::vector<float> likelihoods;
    double likelihood() const { return likelihoods.empty() ? 1 : likelihoods.back(); }
  };
  // What drafts make of a step.
  struct Outlook {
    size_t lines = 0;  // for so many, the likeliest ones; 0: they do not pay
    double tokens = 0;
    double seconds = 0;
  };

  Record& Learn(const Sequence& sequence);
  // The lines of the wishes, the likeliest first.
  std::vector<Line> LinesFor(const std::vector<Wish>& wishes);
  Outlook Best(const std::vector<Line>& lines, const StepPrice& price) const;
  // How many tokens that sequences lack may be computed beside the step.
  int CatchUpBudget(int catch_up_tokens, const StepPrice& price) const;
  // Whether the answer will probably be long enough for what the draft model lacks, which takes
  // `tokens` a step.
  bool PaysToCatchUp(const Line& line, const Outlook& outlook, int tokens,
                     const StepPrice& price) const;
  // Computes tokens that the draft model lacks of these, where that will pay.
  void CatchUp(const std::vector<Line>& lagging, const Outlook& outlook, int tokens,
               const StepPrice& price);
  // What it takes to try the next draft that does not pay; nothing can be tried if it is infinite.
  double ProbeSeconds(const std::vector<Line>& ready, const std::vector<Line>& lagging, int tokens,
                      const StepPrice& price) const;
  void Probe(std::vector<Line>& ready, const std::vector<Line>& lagging, int tokens,
             const StepPrice& price);
  // Extends lines as long as that pays.
  void Extend(std::vector<Line>& lines, int room, const StepPrice& price);
  void ExtendOnce(const std::vector<Line*>& lines);

  const DraftModel::Kind kind_;
  DraftModel model_;
  int states_for_steps_ = 0;  // of a head: so many more steps return hidden states
  bool no_room_ = false;  // the last catching up found no blocks, and no sequence has ended since
  const size_t most_lines_;
  AcceptanceTable acceptance_{ConfidencesBeforeLearning()};
  std::map<uint64_t, Record> records_;  // by the sequence's id
  double answer_tokens_ = 128;          // a mean of the last answers' lengths
  double probe_seconds_ = 0;            // that may be spent on drafts that do not pay
  uint64_t probes_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_MODEL_DRAFTER_H_
