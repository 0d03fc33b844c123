// Draws a token from logits. A pure function of its arguments: the same choice on every worker, in
// every batch, and after every resume.
#ifndef BATON_COMMON_MODEL_SAMPLER_H_
#define BATON_COMMON_MODEL_SAMPLER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::model {

struct SamplingParams {
  float temperature = 1;  // 0: greedy, ties to the lowest id
  float top_p = 1;
  int top_k = 0;  // 0 or -1: no limit
  float min_p = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;  // which of n parallel samples
};

// INVALID_ARGUMENT, naming the field, if one is out of range or NaN.
absl::Status Validate(const SamplingParams& params);

// Temperature first, then top_k, then top_p (the shortest prefix, by logit and then by id, whose
// share of what top_k left is at least top_p), then min_p (relative to the most probable token).
//
// position: index in the sequence of the token that is drawn, so a resumed request draws the same.
// The random number is the low half of Philox4x32-10 (Salmon et al., SC 2011) of key {seed} and
// counter {position, choice, 0}. INTERNAL (reason "NON_FINITE_LOGITS") if a logit is NaN or +inf:
// never a silent token. -inf masks a token.
//
// Nothing is sorted but the last few candidates: greedy and a top_k of up to 2048 are one pass over
// the V logits, the rest a few passes, expected O(V). Thread-safe.
absl::StatusOr<int32_t> Sample(absl::Span<const float> logits, const SamplingParams& params,
                               uint64_t position);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_SAMPLER_H_
