// Which experts compute a row, and with what weights.
#ifndef BATON_COMMON_BACKEND_EXPERTS_H_
#define BATON_COMMON_BACKEND_EXPERTS_H_

#include <cstdint>

#include "absl/types/span.h"

namespace baton::backend {

struct ExpertRouting {
  int per_token = 0;
  bool normalized = false;  // the weights of the chosen ones are divided by their sum
};

// Rows of what Backend::Experts works on, for a step of `rows` rows. A device that computes one
// expert after the other has a row's inputs and results of one expert; one that computes all of
// them at once has results for each choice, of so many rows at a time.
inline constexpr int64_t kExpertRowsAtOnce = 2048;
struct ExpertScratch {
  int64_t inputs = 0;   // of inputs and gate_up_rows
  int64_t results = 0;  // of gated and results

  static ExpertScratch For(int64_t rows, int per_token, bool at_once) {
    if (!at_once) return {rows, rows};
    return {0, (rows < kExpertRowsAtOnce ? rows : kExpertRowsAtOnce) * per_token};
  }
};

struct ChosenExpert {
  int32_t expert = 0;
  float weight = 0;
};

// The routing.per_token experts with the largest logits (equal ones by index), in the order of
// their indices. Their weights are the softmax over all logits. A logit that is not finite gives
// weights that are NaN. Equal logits have equal weights on every machine. O(experts log per_token).
// REQUIRES: chosen has per_token elements, at most as many as there are logits.
void ChooseExperts(absl::Span<const float> logits, const ExpertRouting& routing,
                   absl::Span<ChosenExpert> chosen);

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_EXPERTS_H_
