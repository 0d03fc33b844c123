// The measured cost of this worker's decode steps and prompts, for the load reports.
#ifndef BATON_DECODE_WORKER_STEP_TIMES_H_
#define BATON_DECODE_WORKER_STEP_TIMES_H_

#include <vector>

#include "absl/time/time.h"
#include "common/base/expert_choice.h"
#include "common/base/prefill_work.h"
#include "common/model/model_config.h"
#include "common/worker/step_cost.h"
#include "common/worker/watch_service.h"
#include "decode_worker/scheduler.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

// What decode steps' times are fitted to.
struct DecodeShape {
  worker::StepCost::Terms costs;  // the prior
  ExpertChoice experts;           // of the first layer that has some
};

// From what a step reads: each weight that all tokens use once, each expert that some token
// chooses, and the KV of each token of context. A sequence's matrix multiplies take a small part of
// the time that reading the weights takes: 1/256 on a GPU, whose multipliers are that much faster
// than its memory, 1/8 on a CPU.
DecodeShape DecodeShapeOf(const model::ModelConfig& config, bool on_gpu);

// Thread: owned by the loop.
class StepTimes {
 public:
  explicit StepTimes(const DecodeShape& decoding)
      : prompts_(worker::kPrefillShape),
        decoding_(decoding.costs),
        decode_prior_(decoding.costs),
        experts_(decoding.experts) {}

  // A step ended at `now`; `jobs`: of the prompts that it computed as jobs. A step that decodes and
  // computes prompts is left out: the share of each in its time is not known. Drafts count as
  // sequences with kDraftContext of their sequence's context, whose KV they read together.
  // `between`: from the end of the step before to its begin.
  void AddStep(const std::vector<Chunk>& chunks, const PrefillWork& jobs, absl::Duration took,
               absl::Duration between, absl::Duration now);
  // What a row behind `context` tokens costs beside a sequence's first, in tokens of context: on a
  // CPU a row more took 0.09 of the time that the first row's context takes.
  static constexpr double kDraftContext = 1.0 / 8;

  // Fills in the costs, as far as they are known, the context of the sequences, and the time that
  // the prompts computed here will still take, with `jobs` those of jobs.
  void Report(const std::vector<Sequence*>& sequences, const PrefillWork& jobs,
              int max_tokens_per_step, absl::Duration now, worker::WorkerLoad* load) const;

  worker::StepCost& prompts() { return prompts_; }
  bool measured() const { return decoding_.known(); }

  // The time of a step that computes so many rows of answers beside those of prompts, for sequences
  // with so many tokens of context together; as a multiple of any unit while nothing is measured.
  double DecodeSeconds(double rows, double context_tokens, const PrefillWork& prompts) const;
  // What a unit of the prior is in seconds; 1 while nothing is measured. So a model of which
  // nothing is measured can be priced beside this one.
  double SecondsPerUnit() const;
  // By how much steps with drafts take longer than DecodeSeconds says, where others do not: on a
  // GPU they are neither launched ahead nor repeated from a record. 0 or more, and in the same
  // unit.
  double DraftedExtraSeconds() const;

 private:
  void AddRest(double predicted, bool drafted, double seconds);

  worker::StepCost prompts_;
  worker::StepCost decoding_;
  const worker::StepCost::Terms decode_prior_;
  // Means of what decode steps took beyond what was predicted, of the last ones.
  double drafted_rest_ = 0, plain_rest_ = 0;
  const ExpertChoice experts_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_STEP_TIMES_H_
