// What a planned step makes and takes, as drafts are added to it: tokens, and seconds as measured.
// speculation.h says by which rule drafts pay.
#ifndef BATON_DECODE_WORKER_STEP_PRICE_H_
#define BATON_DECODE_WORKER_STEP_PRICE_H_

#include <vector>

#include "common/base/prefill_work.h"
#include "decode_worker/scheduler.h"
#include "decode_worker/step_times.h"

namespace baton::decode_worker {

class StepPrice {
 public:
  // What a draft has to promise beyond its cost, for all that is not in the measured times: a row
  // that draws nothing has been looked for, sampled and thrown away.
  static constexpr double kMargin = 1.15;

  // Of the step without drafts. `prompts`: those that it computes beside the chunks.
  // `repeats_drafts`: those that are drawn are computed twice. mask_seconds: of one grammar's mask.
  // `times` must outlive this.
  StepPrice(const std::vector<Chunk>& chunks, const PrefillWork& prompts, const StepTimes& times,
            bool repeats_drafts, double mask_seconds);

  // The time that one more row of the chunk adds, a draft that is drawn with this probability.
  double RowSeconds(const Chunk& chunk, double likelihood) const;
  // Such a row is part of the step from now on.
  void Add(const Chunk& chunk, double likelihood);
  // The step waits so long for drafts to be made.
  void AddSeconds(double seconds) { seconds_ += seconds; }

  // Whether the expected tokens are worth the time, with kMargin.
  bool Pays(double tokens, double seconds) const {
    return tokens * seconds_ > kMargin * tokens_ * seconds;
  }
  // Whether the step makes more tokens a second than it would without drafts.
  bool Gains() const;

  const StepTimes& times() const { return times_; }
  double tokens() const { return tokens_; }
  double seconds() const { return seconds_; }

 private:
  const StepTimes& times_;
  const bool repeats_drafts_;
  const double mask_seconds_;
  PrefillWork prompts_;
  double rows_ = 0;
  double context_tokens_ = 0;
  double tokens_ = 0;  // expected
  double seconds_ = 0;
  double plain_tokens_ = 0;
  double plain_seconds_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_STEP_PRICE_H_
