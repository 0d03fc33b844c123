// How many prompt tokens a step may compute beside the tokens that it decodes, so that no step is
// long: heartbeats, cancels and the next tokens of running answers wait for its end. A worker that
// is merely slow must not look like one that is frozen.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_PROMPT_BUDGET_H_
#define BATON_DECODE_WORKER_PROMPT_BUDGET_H_

#include <algorithm>

#include "absl/time/time.h"

namespace baton::decode_worker {

class PromptBudget {
 public:
  // Of a step that decodes nothing: well below the second between heartbeats.
  static constexpr absl::Duration kAlone = absl::Milliseconds(500);
  // Of one that decodes, with its decoding; but prompts have kShare, however long that takes.
  static constexpr absl::Duration kBesideAnswers = absl::Milliseconds(250);
  static constexpr absl::Duration kShare = absl::Milliseconds(150);

  // Never above `most_tokens`, and never below `least_tokens`, a block, so that prompts go on
  // whatever was measured.
  PromptBudget(int least_tokens, int most_tokens)
      : least_tokens_(std::min(least_tokens, most_tokens)), most_tokens_(most_tokens) {}

  // Of the next step.
  int Tokens() const;
  // A step computed `prompt_tokens`, 0 or more, and decoded so many sequences, in that time.
  void Stepped(int prompt_tokens, int decoding, absl::Duration took);

 private:
  static constexpr int kFirst = 64;

  const int least_tokens_;
  const int most_tokens_;
  int known_tokens_ = kFirst / 2;  // the largest step so far
  double prompt_rate_ = 0;         // tokens a second; 0: not measured
  double decode_seconds_ = 0;      // of a step without prompt tokens
  bool beside_answers_ = false;    // in the last step
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_PROMPT_BUDGET_H_
