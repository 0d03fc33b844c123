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

// position: index in the sequence of the token that is drawn, so a resumed request draws the same.
// The random number is Philox4x32-10 (Salmon et al., SC 2011) of key (seed) and counter (choice,
// position). INTERNAL (reason "NON_FINITE_LOGITS") if a logit is NaN or +inf: never a silent token.
absl::StatusOr<int32_t> Sample(absl::Span<const float> logits, const SamplingParams& params,
                               uint64_t position);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_SAMPLER_H_
