// How many prompt tokens a step of a decode worker may compute besides the tokens that it decodes.
// The budget bounds a step's time: heartbeats, cancels and the next tokens of running answers wait
// for the step's end, and a slow worker must not look like a frozen one.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_COMMON_WORKER_PROMPT_BUDGET_H_
#define BATON_COMMON_WORKER_PROMPT_BUDGET_H_

#include <algorithm>

#include "absl/time/time.h"

namespace baton::worker {

class PromptBudget {
 public:
  // Target time of a step that decodes nothing: well below the second between heartbeats.
  static constexpr absl::Duration kAlone = absl::Milliseconds(500);
  // Target time of a step that decodes and computes prompts, which get at least kShare.
  static constexpr absl::Duration kBesideAnswers = absl::Milliseconds(250);
  static constexpr absl::Duration kShare = absl::Milliseconds(150);

  // The budget is at most `most_tokens` and at least `least_tokens`, a block, so that prompts
  // always progress.
  PromptBudget(int least_tokens, int most_tokens)
      : least_tokens_(std::min(least_tokens, most_tokens)), most_tokens_(most_tokens) {}

  // Returns the budget of the next step.
  int Tokens() const;
  // A step computed `prompt_tokens` tokens, 0 or more, and decoded `decoding` sequences, in `took`.
  void OnStep(int prompt_tokens, int decoding, absl::Duration took);

 private:
  static constexpr int kFirst = 64;

  const int least_tokens_;
  const int most_tokens_;
  int known_tokens_ = kFirst / 2;  // the largest step so far
  double prompt_rate_ = 0;         // tokens per second; 0: not measured
  double decode_seconds_ = 0;      // time of a step without prompt tokens
  bool beside_answers_ = false;    // the last step decoded
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_PROMPT_BUDGET_H_
