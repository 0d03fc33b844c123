// What computing prompts takes on this worker, learned from its own steps.
//
// A step that computes n tokens of each of some prompts, behind c tokens of context each, takes
//   fixed + token · Σ n + pair · Σ n (c + n/2)
// seconds: reading the weights, the products, and attention, whose work is the pairs of tokens that
// look at each other. The three are fitted by least squares over the steps so far, each step's
// weight falling as others follow; relative errors count, so that long steps do not drown short
// ones. None of the three is ever negative. What the steps do not tell apart (all of one size, say)
// stays near what a prior says, which is scaled to the pace seen.
#ifndef BATON_COMMON_WORKER_PREFILL_COST_H_
#define BATON_COMMON_WORKER_PREFILL_COST_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "baton/internal/v1/worker.pb.h"

namespace baton::worker {

// Prompt tokens to compute, and pairs: the sums over prompts of n and of n (c + n/2).
struct PrefillWork {
  double tokens = 0;
  double pairs = 0;

  void Add(double new_tokens, double context_tokens) {
    tokens += new_tokens;
    pairs += new_tokens * (context_tokens + new_tokens / 2);
  }
};

// Thread: owned by a loop.
class PrefillCost {
 public:
  // A step computed that, and nothing else, in that time. One that takes several times as long as
  // all before it led to expect is taken for a stall and left out, unless others follow: then the
  // worker has become slow. Steps of no work, or of no time, tell nothing.
  void StepTook(const PrefillWork& work, absl::Duration took);

  // So many steps' worth is known that routers may rely on it.
  bool known() const { return steps_ >= kStepsToKnow; }
  double fixed_us() const { return coefficients_[0] * 1e6; }
  double token_us() const { return coefficients_[1] * 1e6; }
  double pair_us() const { return coefficients_[2] * 1e6; }

  // To be told; nothing before it is known.
  std::optional<internal::v1::PrefillCost> ToProto() const;

  // All of that work, in steps of at most so many tokens. 0 while nothing is known.
  absl::Duration TimeFor(const PrefillWork& work, int max_tokens_per_step) const;

  static constexpr int kStepsToKnow = 8;

 private:
  static constexpr int kTerms = 3;
  using Vector = std::array<double, kTerms>;

  double Predict(const Vector& features) const;
  void Fit();

  // Weighted normal equations: features × features, features × seconds.
  std::array<Vector, kTerms> moments_ = {};
  Vector targets_ = {};
  double pace_ = 0;  // decayed mean of seconds over what the prior expects
  double pace_weight_ = 0;
  Vector coefficients_ = {};
  int64_t steps_ = 0;
  int stalls_in_a_row_ = 0;
  double longest_s_ = 0;  // of the last steps
};

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_PREFILL_COST_H_
