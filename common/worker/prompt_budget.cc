#include "common/worker/prompt_budget.h"

#include <algorithm>

namespace baton::worker {

int PromptBudget::Tokens() const {
  // What a large step takes is known only from steps nearly as large.
  double tokens = 2.0 * known_tokens_;
  if (prompt_rate_ > 0) {
    const double seconds = beside_answers_
                               ? std::max(absl::ToDoubleSeconds(kBesideAnswers) - decode_seconds_,
                                          absl::ToDoubleSeconds(kShare))
                               : absl::ToDoubleSeconds(kAlone);
    tokens = std::min(tokens, prompt_rate_ * seconds);
  }
  return static_cast<int>(std::clamp<double>(tokens, least_tokens_, most_tokens_));
}

void PromptBudget::OnStep(int prompt_tokens, int decoding, absl::Duration took) {
  const double seconds = absl::ToDoubleSeconds(took);
  if (prompt_tokens == 0) {
    decode_seconds_ = decode_seconds_ == 0 ? seconds : (decode_seconds_ + seconds) / 2;
  } else if (seconds <= 0) {
    known_tokens_ = std::max(known_tokens_, prompt_tokens);
  } else if (prompt_rate_ == 0 || 2 * prompt_tokens >= Tokens()) {
    // Small steps, which have little to do, say nothing of large ones. Slower counts at once,
    // faster by halves: a chunk takes the longer the more context it has.
    const double decode = decoding > 0 ? std::min(decode_seconds_, 0.9 * seconds) : 0;
    const double rate = prompt_tokens / (seconds - decode);
    const bool slower = prompt_rate_ == 0 || rate < prompt_rate_;
    prompt_rate_ = slower ? rate : (prompt_rate_ + rate) / 2;
    known_tokens_ = std::max(known_tokens_, prompt_tokens);
  }
  beside_answers_ = decoding > 0;
}

}  // namespace baton::worker
