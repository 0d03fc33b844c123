// Which experts compute a row, and with what weights.
#ifndef BATON_COMMON_BACKEND_EXPERTS_H_
#define BATON_COMMON_BACKEND_EXPERTS_H_

#include <cstdint>

#include "absl/types/span.h"

namespace baton::backend {

struct ExpertRouting {
  int per_token = 0;
  bool normalized = false;  // the weights of the chosen ones are divided by their sum
  // An expert's score is the sigmoid of its logit, not its part of the softmax over all logits.
  bool sigmoid = false;
  float scale = 1;  // on the weights, at last
};

// Rows of what Backend::Experts works on, for a step of `rows` rows. A device that computes some
// experts after the others has at least a row's inputs and results of one expert, and those of each
// choice of a few rows, whose experts it computes at once; one that always computes all of them at
// once has results for each choice, of so many rows at a time.
inline constexpr int64_t kExpertRowsAtOnce = 2048;
inline constexpr int64_t kFewExpertRows = 16;
struct ExpertScratch {
  int64_t inputs = 0;
  int64_t gate_up = 0;  // of gate_up_rows
  int64_t results = 0;  // of gated and results

  static ExpertScratch For(int64_t rows, int per_token, bool at_once, bool has_gate = true) {
    if (at_once) {
      const int64_t results = (rows < kExpertRowsAtOnce ? rows : kExpertRowsAtOnce) * per_token;
      return {0, has_gate ? 0 : results, results};
    }
    const int64_t of_few = (rows < kFewExpertRows ? rows : kFewExpertRows) * per_token;
    const int64_t each = rows > of_few ? rows : of_few;
    return {each, each, each};
  }
};

// What an expert in the host's memory takes on the device while its layer is computed: each of its
// matrices begins at a multiple of 256 bytes.
constexpr int64_t FetchedMatrixBytes(int64_t matrix_bytes) {
  return (matrix_bytes + 255) / 256 * 256;
}

struct ChosenExpert {
  int32_t expert = 0;
  float weight = 0;
};

// The routing.per_token experts with the largest scores (equal ones by index), in the order of
// their indices, and their scores as weights: the softmax over all logits or, with routing.sigmoid,
// the sigmoid of each. choice_bias, which only with sigmoid may have elements, one an expert, is
// added to the scores for the choice and not for the weights (arXiv 2408.15664). A logit that is
// not finite gives weights that are NaN. Equal logits have equal weights on every machine.
// O(experts log per_token). REQUIRES: chosen has per_token elements, at most as many as there are
// logits.
void ChooseExperts(absl::Span<const float> logits, absl::Span<const float> choice_bias,
                   const ExpertRouting& routing, absl::Span<ChosenExpert> chosen);

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_EXPERTS_H_
