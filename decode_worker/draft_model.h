// A model that drafts for this worker's sequences: a smaller one with the same tokenizer. It has an
// engine of its own, and in it KV of the tokens that the sequences have.
//
// A draft is drawn as the model that answers draws: with the request's sampling parameters, and
// with the random number of the draft's position. Two models that give a token similar
// probabilities then draw the same token most of the time, at any temperature: the draws are
// coupled. (Drafts that are drawn independently are the same with the probability that both models
// draw a token twice.)
//
// KV here follows the sequence's tokens. Drafts that are computed and drawn are tokens of the
// sequence from then on; the KV of others is overwritten. Whole blocks go to a prefix cache of this
// pool, so the prompt that several choices, or several turns of a chat, share is computed once. The
// cache's namespaces are those of the prefix cache of the answers' KV: another cache salt shares
// nothing. Where blocks are lacking, sequences that have not drafted for some time lose theirs.
//
// What a draft costs is measured: the times of this engine's steps.
//
// Thread: owned by the loop.
#ifndef BATON_DECODE_WORKER_DRAFT_MODEL_H_
#define BATON_DECODE_WORKER_DRAFT_MODEL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/engine/engine.h"
#include "common/kv/block_pool.h"
#include "common/kv/radix_cache.h"
#include "common/worker/step_cost.h"
#include "decode_worker/sequence.h"
#include "decode_worker/step_times.h"

namespace baton::decode_worker {

// INVALID_ARGUMENT (DRAFT_MODEL) unless `draft` can draft for `answers`: it has the same tokenizer.
// UNIMPLEMENTED (DRAFT_MODEL) if it has recurrent layers, whose state cannot leave refused drafts.
absl::Status CheckDraftModel(const engine::Engine& draft, const engine::Engine& answers);

class DraftModel {
 public:
  // A sequence that drafts, and its drafts of this step.
  struct Line {
    const Sequence* sequence = nullptr;
    std::vector<int32_t> tokens = {};  // the sequence's, and `drafts` behind them
    std::vector<int32_t> drafts = {};
    // Of each draft, the probability that the model gives it. Empty where the engine draws on a
    // device, which reports none.
    std::vector<float> confidences = {};
    // No more drafts can follow: the last one could not be drawn, there is no room for its KV, or
    // the model's context ends here.
    bool ended = false;
  };

  // The engine and the clock must outlive this. REQUIRES: CheckDraftModel is OK.
  DraftModel(engine::Engine& engine, const Clock& clock);

  // How many tokens of the sequence have no KV here; at least 1, the last one. For a sequence that
  // is new here, this looks up the prefix cache.
  int Missing(const Sequence& sequence);
  // Sequences that lack up to this many tokens may draft.
  static constexpr int kMostMissing = 8;
  // Computes tokens that the sequences lack, up to `most_tokens` together, the first sequence's
  // first; their last tokens are left to Extend.
  void CatchUp(absl::Span<const Sequence* const> sequences, int most_tokens);
  // Draws one more draft for each line in one step of the engine. REQUIRES: each line's sequence
  // lacks at most kMostMissing tokens; none has ended; at most max_num_seqs lines.
  void Extend(absl::Span<Line* const> lines);
  // The sequence has ended.
  void Ended(const Sequence& sequence);

  // The time of a step of so many rows behind so much context together, and that of computing
  // `tokens` of a prompt behind `context` tokens: in seconds once steps of both models were
  // measured, before that in the unit of `answers`.
  double StepSeconds(double rows, double context, const StepTimes& answers) const;
  double CatchUpSeconds(double tokens, double context, const StepTimes& answers) const;

  const kv::BlockPool& pool() const { return pool_; }
  // For tests.
  void CheckIntegrity() const;

 private:
  struct Text {
    const Sequence* sequence = nullptr;  // Ended comes before it is deleted
    kv::BlockLease blocks;
    int computed = 0;              // the sequence's first so many tokens have KV
    std::vector<int32_t> drafted;  // drafts that have KV behind these
    model::SamplingParams sampling;
    uint64_t used_in = 0;
  };

  Text& TextOf(const Sequence& sequence);
  // Blocks for so many tokens. False: there are none.
  bool Reserve(Text& text, int tokens);
  // Takes the blocks of the sequence but `other` that has not drafted for the longest time. False:
  // all have of late.
  bool ReleaseOldest(const Text& other);
  // Adds what the text has computed of `tokens` to the prefix cache.
  void Share(const Text& text);
  // Runs a step of so many tokens behind so much context together, and measures it.
  std::vector<engine::StepResult> Step(const engine::Batch& batch, worker::StepCost& cost,
                                       const worker::StepCost::Terms& work);
  // The terms of a step of so many rows.
  worker::StepCost::Terms TermsOf(double rows, double context) const;

  engine::Engine& engine_;
  const Clock& clock_;
  const int block_tokens_;
  const bool on_device_;
  const DecodeShape shape_;
  kv::BlockPool pool_;
  kv::RadixCache cache_;
  worker::StepCost steps_;
  worker::StepCost prompts_;
  std::map<uint64_t, Text> texts_;  // by the sequence's id
  uint64_t uses_ = 0;               // calls of CatchUp and Extend
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DRAFT_MODEL_H_
