#include "common/worker/step_cost.h"

#include <algorithm>
#include <cmath>

namespace baton::worker {
namespace {

// Each new step leaves the earlier ones this share of their weight: the last hundred or so count.
constexpr double kKeep = 0.99;
// As much as so many steps of relative error 1 would say.
constexpr double kPriorWeight = 0.02;
// Longer than expected by this much, a step is taken for a stall.
constexpr double kStall = 3;
constexpr int kStallsToBelieve = 4;
// In the pace, a step counts as at most so long: a process that was stopped for a minute is not a
// slow one.
constexpr double kLongestStall_s = 1;
// What the fit says counts in this worker's own estimates like so many seconds of steps.
constexpr double kFitWeight_s = 0.25;

// Solves the system of those terms that `used` has, by elimination. False if it is singular.
bool Solve(std::array<StepCost::Terms, StepCost::kTerms> a, StepCost::Terms b, unsigned used,
           StepCost::Terms* solution) {
  int index[StepCost::kTerms];
  int n = 0;
  for (int i = 0; i < StepCost::kTerms; ++i) {
    if (used >> i & 1) index[n++] = i;
  }
  *solution = {};
  for (int column = 0; column < n; ++column) {
    const int at = index[column];
    const double pivot = a[at][at];
    // Positive definite but for rounding.
    if (!(pivot > 0)) return false;
    for (int row = column + 1; row < n; ++row) {
      const int of = index[row];
      const double factor = a[of][at] / pivot;
      for (int k = column; k < n; ++k) a[of][index[k]] -= factor * a[at][index[k]];
      b[of] -= factor * b[at];
    }
  }
  for (int row = n - 1; row >= 0; --row) {
    const int of = index[row];
    double sum = b[of];
    for (int k = row + 1; k < n; ++k) sum -= a[of][index[k]] * (*solution)[index[k]];
    (*solution)[of] = sum / a[of][of];
  }
  return true;
}

double Dot(const StepCost::Terms& a, const StepCost::Terms& b) {
  return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
}

internal::v1::MeasuredSteps ToProto(const StepCost::Measured& measured) {
  internal::v1::MeasuredSteps proto;
  proto.set_steps(measured.steps);
  proto.set_seconds(measured.seconds);
  return proto;
}

}  // namespace

double StepCost::Predict(const Terms& work) const { return Dot(terms_, work); }

void StepCost::AddStep(const Terms& work, absl::Duration took, absl::Duration now) {
  const double seconds = absl::ToDoubleSeconds(took);
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  if (warm_up_left_ > 0) {
    --warm_up_left_;
    return;
  }
  if (!IsStall(seconds, work)) AddToFit(work, seconds);
  measured_ = MeasuredAt(now);
  last_ = now;
  measured_.steps += 1;
  measured_.seconds += std::min(seconds, std::max(kLongestStall_s, kStall * Predict(work)));
  for (int i = 0; i < kTerms; ++i) measured_.work[i] += work[i];
}

bool StepCost::IsStall(double seconds, const Terms& work) {
  // Not by the prediction alone: of short steps among long ones it may be far off.
  const double usual = std::max(longest_s_, known() ? Predict(work) : 0);
  stalls_in_a_row_ = steps_ > 1 && seconds > kStall * usual ? stalls_in_a_row_ + 1 : 0;
  return stalls_in_a_row_ > 0 && stalls_in_a_row_ < kStallsToBelieve;
}

void StepCost::AddToFit(const Terms& work, double seconds) {
  longest_s_ = std::max(longest_s_ * kKeep, seconds);
  // The error's share of the step is to be small: weighted by what the shape expects and not by the
  // time taken, or the steps of a worker that has become slow would hardly count.
  const double expected = Dot(shape_, work);
  const double weight = 1 / (expected * expected);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) {
      moments_[i][j] = moments_[i][j] * kKeep + weight * work[i] * work[j];
    }
    targets_[i] = targets_[i] * kKeep + weight * work[i] * seconds;
  }
  pace_ = pace_ * kKeep + seconds / expected;
  weight_ = weight_ * kKeep + 1;
  ++steps_;
  Fit();
}

// Least squares with coefficients that are not negative: of all sets of terms, the one whose
// own solution is so and leaves the least error.
void StepCost::Fit() {
  const double pace = pace_ / weight_;
  // The prior's own equations, each weighted like a step of that term alone.
  std::array<Terms, kTerms> a = moments_;
  Terms b = targets_;
  Terms best = {};
  for (int i = 0; i < kTerms; ++i) {
    if (shape_[i] == 0) continue;  // its row stays 0, so no set with it has a solution
    const double weight = kPriorWeight / (shape_[i] * shape_[i]);
    best[i] = pace * shape_[i];
    a[i][i] += weight;
    b[i] += weight * best[i];
  }
  double least = 0;
  for (unsigned used = 1; used < 1u << kTerms; ++used) {
    Terms x;
    if (!Solve(a, b, used, &x)) continue;
    if (*std::min_element(x.begin(), x.end()) < 0) continue;
    // The error, less what is the same for all.
    double error = 0;
    for (int i = 0; i < kTerms; ++i) {
      error -= 2 * b[i] * x[i];
      for (int j = 0; j < kTerms; ++j) error += x[i] * a[i][j] * x[j];
    }
    if (error < least) least = error, best = x;
  }
  terms_ = best;
}

StepCost::Measured StepCost::MeasuredAt(absl::Duration now) const {
  const double keep = std::exp2(-absl::FDivDuration(now - last_, kHalfLife));
  Measured measured = measured_;
  measured.steps *= keep;
  measured.seconds *= keep;
  for (double& work : measured.work) work *= keep;
  return measured;
}

double StepCost::Seconds(const Terms& work, absl::Duration now) const {
  if (!known()) return 0;
  const Measured measured = MeasuredAt(now);
  const double pace = (measured.seconds + kFitWeight_s) / (Predict(measured.work) + kFitWeight_s);
  return pace * Predict(work);
}

StepCost::Terms PrefillTerms(const PrefillWork& work, int max_tokens_per_step) {
  return {std::ceil(work.tokens / std::max(1, max_tokens_per_step)), work.tokens, work.pairs};
}

std::optional<internal::v1::PrefillCost> ToPrefillCost(const StepCost& cost, absl::Duration now) {
  if (!cost.known()) return std::nullopt;
  internal::v1::PrefillCost proto;
  proto.set_fixed_us(cost.terms()[0] * 1e6);
  proto.set_token_us(cost.terms()[1] * 1e6);
  proto.set_pair_us(cost.terms()[2] * 1e6);
  proto.set_fitted_steps(cost.fitted_steps());
  const StepCost::Measured measured = cost.MeasuredAt(now);
  *proto.mutable_measured() = ToProto(measured);
  proto.mutable_measured()->set_prompt_tokens(measured.work[1]);
  proto.mutable_measured()->set_pairs(measured.work[2]);
  return proto;
}

std::optional<internal::v1::DecodeCost> ToDecodeCost(const StepCost& cost,
                                                     const ExpertChoice& experts,
                                                     absl::Duration now) {
  if (!cost.known()) return std::nullopt;
  internal::v1::DecodeCost proto;
  proto.set_fixed_us(cost.terms()[0] * 1e6);
  proto.set_sequence_us(cost.terms()[1] * 1e6);
  proto.set_context_token_us(cost.terms()[2] * 1e6);
  proto.set_fitted_steps(cost.fitted_steps());
  const StepCost::Measured measured = cost.MeasuredAt(now);
  *proto.mutable_measured() = ToProto(measured);
  proto.mutable_measured()->set_sequences(measured.work[1]);
  proto.mutable_measured()->set_context_tokens(measured.work[2]);
  if (experts.experts > 0) {
    proto.set_expert_us(cost.terms()[3] * 1e6);
    proto.set_experts(experts.experts);
    proto.set_experts_per_token(experts.per_token);
    proto.mutable_measured()->set_experts(measured.work[3]);
  }
  return proto;
}

}  // namespace baton::worker
