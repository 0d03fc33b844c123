// Bias, penalties and suppression of a request, applied to the logits before a token is drawn: the
// first half of sampler.h.
#ifndef BATON_COMMON_MODEL_ADJUST_LOGITS_H_
#define BATON_COMMON_MODEL_ADJUST_LOGITS_H_

#include <limits>

#include "absl/types/span.h"
#include "common/model/sampler.h"

namespace baton::model {

// A token with such a logit is never drawn.
inline bool Masked(float logit) { return logit == -std::numeric_limits<float>::infinity(); }

// True if AdjustLogits would change a logit.
bool ChangesLogits(const SamplingParams& params, const SamplingHistory& history);

// Changes the logits in the order given in sampler.h. A finite logit stays finite unless it is
// suppressed; -inf stays -inf. Thread-safe. REQUIRES: `params` is valid, no logit is NaN or +inf.
void AdjustLogits(const SamplingParams& params, const SamplingHistory& history,
                  absl::Span<float> logits);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_ADJUST_LOGITS_H_
