// The time that steps take on this worker, learned from the steps themselves.
//
// A step's time is a sum of terms: a fixed part, and those that grow with its work.
//   prompts:  fixed + token · Σ n + pair · Σ n (c + n/2)       n tokens after c tokens of context
//   decoding: fixed + sequence · n + context · c + expert · e  n sequences with c tokens of context
// The terms are reading the weights that every step reads, the matrix multiplies, attention, and
// reading experts: e are the distinct ones that n tokens are expected to choose in a layer. They
// grow with n as no straight line does: of 128 experts, 8 a token, one sequence reads 8, eight 52,
// and 64 sequences 126.
//
// Two things are learned. The *fit* is what the terms cost, by weighted least squares over the last
// hundred steps or so. Relative errors count, so that long steps do not drown short ones. No term
// is ever negative. What the steps do not distinguish (all of one size, say) stays near a prior
// shape, scaled to the pace seen. A step that takes several times as long as all before it led to
// expect is taken for a stall and left out, unless others follow: then the worker has become slow.
// The *pace* is how the last seconds compare with the fit. It follows a worker that becomes slow or
// recovers within seconds, whether every step is slow or a few steps are very slow. Evidence of it
// halves every kHalfLife, so a worker that has been idle says nothing about its pace.
#ifndef BATON_COMMON_WORKER_STEP_COST_H_
#define BATON_COMMON_WORKER_STEP_COST_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "baton/internal/v1/worker.pb.h"
#include "common/base/expert_choice.h"
#include "common/base/prefill_work.h"

namespace baton::worker {

// Thread: owned by a loop.
class StepCost {
 public:
  static constexpr int kTerms = 4;
  using Terms = std::array<double, kTerms>;

  static constexpr absl::Duration kHalfLife = absl::Seconds(2);
  // The first steps after a start touch memory and code for the first time. They are ignored.
  static constexpr int kWarmUpSteps = 3;
  static constexpr int kStepsToKnow = 8;

  // `shape`: what a fixed part, and one unit of each other term, cost relative to each other. A
  // term of 0 does not exist: its work is always 0.
  // REQUIRES: none negative, the first positive.
  explicit StepCost(const Terms& shape) : shape_(shape) {}

  // Adds a step with `work` units of each term (the first is 1) that took `took` and ended at
  // `now`, which never goes back. Steps that took no time are left out.
  void AddStep(const Terms& work, absl::Duration took, absl::Duration now);

  // True once enough steps were measured for routers to rely on the fit.
  bool known() const { return steps_ >= kStepsToKnow; }
  // Seconds per unit of each term.
  const Terms& terms() const { return terms_; }
  double fitted_steps() const { return weight_; }
  // Returns the seconds that `work` takes at the present pace. 0 while nothing is known.
  double Seconds(const Terms& work, absl::Duration now) const;

  // Sums over the last steps; see MeasuredSteps in worker.proto.
  struct Measured {
    double steps = 0;
    double seconds = 0;
    Terms work = {};
  };
  Measured MeasuredAt(absl::Duration now) const;

 private:
  double Predict(const Terms& work) const;
  bool IsStall(double seconds, const Terms& work);
  void AddToFit(const Terms& work, double seconds);
  void Fit();

  Terms shape_;
  // Weighted normal equations: work × work, work × seconds.
  std::array<Terms, kTerms> moments_ = {};
  Terms targets_ = {};
  double pace_ = 0;  // decayed sum of seconds over those that the shape expects
  double weight_ = 0;
  Terms terms_ = {};
  int64_t steps_ = 0;  // warm-up not counted
  int warm_up_left_ = kWarmUpSteps;
  int stalls_in_a_row_ = 0;
  double longest_s_ = 0;  // longest of the last steps
  absl::Duration last_;   // the end of the last step
  Measured measured_;     // as of last_
};

// Costs of a prompt's fixed part, token and pair, in units of a token's: attention over 32 k of
// context doubles the cost of a token.
inline constexpr StepCost::Terms kPrefillShape = {40, 1, 1.0 / 32'768};

// Returns the terms of all of `work`, in steps of at most max_tokens_per_step tokens.
StepCost::Terms PrefillTerms(const PrefillWork& work, int max_tokens_per_step);

// Return the costs as reported to routers; nullopt before they are known.
std::optional<internal::v1::PrefillCost> ToPrefillCost(const StepCost& cost, absl::Duration now);
// `experts`: those of the model's layers.
std::optional<internal::v1::DecodeCost> ToDecodeCost(const StepCost& cost,
                                                     const ExpertChoice& experts,
                                                     absl::Duration now);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_STEP_COST_H_
