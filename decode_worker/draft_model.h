// A model that drafts for this worker's sequences: a smaller one with the same tokenizer, or the
// MTP head of the model itself. It runs on an engine beside the worker's, whose pool holds KV of
// the sequences' tokens.
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
// An MTP head (multi-token prediction, DeepSeek-V3, arXiv 2412.19437) makes a draft from a token
// and the hidden state that the model gave for the token before it, which is known once the model
// has computed that one; and further drafts from its own hidden states. Other workers' prompts come
// without hidden states, and cached ones have none, so the head has KV of a sequence only from the
// first token on whose hidden state the worker has: it attends to the last part of the text alone.
// KV that it computed from its own states is replaced when the model's are there. Nothing of it is
// shared.
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
#include "common/model/model_config.h"
#include "common/worker/step_cost.h"
#include "decode_worker/sequence.h"
#include "decode_worker/step_times.h"

namespace baton::decode_worker {

// INVALID_ARGUMENT (DRAFT_MODEL) unless a model of the first config can draft for one of the
// second: the two must have the same tokenizer. UNIMPLEMENTED (DRAFT_MODEL) if it has recurrent
// layers, whose state cannot leave refused drafts.
absl::Status CheckDraftModel(const model::ModelConfig& draft, const model::ModelConfig& model);

class DraftModel {
 public:
  // A sequence that drafts, and its drafts of this step.
  struct Drafting {
    const Sequence* sequence = nullptr;
    std::vector<int32_t> tokens = {};  // the sequence's, and `drafts` behind them
    std::vector<int32_t> drafts = {};
    // Of each draft, the probability that the model gives it. Empty where the engine draws on a
    // GPU, which reports none.
    std::vector<float> confidences = {};
    // No more drafts can follow: the last one could not be drawn, there is no room for its KV, or
    // the model's context ends here.
    bool ended = false;
  };

  enum class Kind { kModel, kMtpHead };
  struct Options {
    Kind kind = Kind::kModel;
    bool on_gpu = false;  // the engine computes on one
    bool enable_prefix_caching = true;
  };
  // The engine and the clock must outlive this. REQUIRES: CheckDraftModel is OK.
  DraftModel(engine::Engine& engine, const Options& options, const Clock& clock);

  // A step of the worker is planned: what has drafted is judged by how many of these ago that was.
  void OnStepPlanned() { ++planned_steps_; }

  // Returns how many tokens of the sequence have no KV here: 1 or more, or 0 while the token
  // behind the last one is being drawn. For a sequence that is new here, this looks up the prefix
  // cache. For an MTP head it returns kNoStates if the hidden states are lacking from which the
  // head would compute them.
  int Missing(const Sequence& sequence);
  static constexpr int kNoStates = 1 << 30;
  // Whether the model knows all tokens of the sequence, and its context and its pool have room for
  // a draft. Embeddings have rows that the tokenizer lacks, more or fewer of them by model, and a
  // request may have their ids.
  bool Holds(const Sequence& sequence);
  // Sequences that lack up to this many tokens may draft.
  static constexpr int kMostMissing = engine::EngineOptions::kMtpRowsOfSequence;
  // Computes tokens that the sequences lack, up to `most_tokens` together, the first sequence's
  // first; their last tokens are left to Extend. A sequence without blocks for all that it lacks is
  // not begun. Returns how many it computed.
  int CatchUp(absl::Span<const Sequence* const> sequences, int most_tokens);
  // Takes, for an MTP head, the model's hidden states of tokens of the sequence, from its token
  // `begin` on. Where there are more than kMostMissing, it computes their KV.
  void AddStates(const Sequence& sequence, int begin, absl::Span<const float> states);
  // Draws one more draft for each of these in one step of the engine. REQUIRES: each one's sequence
  // lacks at most kMostMissing tokens; none has ended; at most max_num_seqs of them.
  void Extend(absl::Span<Drafting* const> drafting);
  // The sequence has ended.
  void Ended(const Sequence& sequence);
  // Evicts the cached blocks that no sequence uses.
  void FlushCache() { cache_.Clear(); }

  // The time of a step of so many rows behind so much context together, and that of computing
  // `tokens` of a prompt behind `context` tokens, in so many steps: in seconds once steps of both
  // models were measured, before that in the unit of the worker's times.
  double StepSeconds(double rows, double context, const StepTimes& worker) const;
  double CatchUpSeconds(double tokens, double context, int steps, const StepTimes& worker) const;

  // The most tokens that one step of the draft model computes.
  int max_num_batched_tokens() const { return engine_.max_num_batched_tokens(); }
  const kv::BlockPool& pool() const { return pool_; }
  // For tests.
  void CheckIntegrity() const;

 private:
  struct Text {
    const Sequence* sequence = nullptr;  // Ended comes before it is deleted
    kv::BlockLease blocks;
    // The sequence's tokens [first, computed) have KV. `first` is not 0 for an MTP head alone.
    int first = 0;
    int computed = 0;
    size_t checked = 0;            // so many tokens were compared with the model's vocabulary
    bool unknown = false;          // one of them is not in it
    std::vector<int32_t> drafted;  // drafts that have KV behind these
    // An MTP head has the model's hidden states of the tokens from computed - 1 on, and the state
    // that it gave itself for the last draft's input.
    std::vector<float> states;
    std::vector<float> own_state;
    model::SamplingParams sampling;
    uint64_t used_in = 0;  // planned_steps_ then
  };

  Text& TextOf(const Sequence& sequence);
  // Blocks for so many tokens. False: there are none.
  bool Reserve(Text& text, int tokens);
  int BlocksFor(int tokens) const { return (tokens + block_tokens_ - 1) / block_tokens_; }
  // Whether the text keeps its blocks: it has drafted of late.
  bool InUse(const Text& text) const;
  // Takes the blocks of the sequence but `other` that has not drafted for the longest time.
  // Returns false if all have drafted of late.
  bool ReleaseOldest(const Text& other);
  bool shares_texts() const {
    return options_.kind == Kind::kModel && options_.enable_prefix_caching;
  }
  // Adds the whole blocks that the text has computed to the prefix cache, where there is one.
  void Share(const Text& text);
  // Runs a step of so many tokens behind so much context together, and measures it.
  std::vector<engine::StepResult> Step(const engine::Batch& batch, worker::StepCost& cost,
                                       const worker::StepCost::Terms& work);
  // The terms of a step of so many rows.
  worker::StepCost::Terms TermsOf(double rows, double context) const;

  // The hidden states of `count` tokens before those from text.computed on.
  absl::Span<const float> StatesBefore(const Text& text, int count) const;
  int states(const Text& text) const { return static_cast<int>(text.states.size() / hidden_dim_); }

  engine::Engine& engine_;
  const Options options_;
  const size_t hidden_dim_;
  const Clock& clock_;
  const int block_tokens_;
  const DecodeShape shape_;
  kv::BlockPool pool_;
  kv::RadixCache cache_;
  worker::StepCost steps_;
  worker::StepCost prompts_;
  std::map<uint64_t, Text> texts_;  // by the sequence's id
  uint64_t planned_steps_ = 0;
  bool reported_error_ = false;  // a draw has failed, and the log says so
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_DRAFT_MODEL_H_
