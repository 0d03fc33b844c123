#include "common/worker/prefill_cost.h"

#include <algorithm>
#include <cmath>

namespace baton::worker {
namespace {

// Of the weight of all steps so far, at each new one: the last hundred or so count.
constexpr double kKeep = 0.99;
// What a step, a token and a pair cost, in tokens: the shape of the prior, whose scale is learned.
// Attention over 32 k of context doubles a token.
constexpr double kPrior[] = {40, 1, 1.0 / 32'768};
// As much as so many steps of relative error 1 would say.
constexpr double kPriorWeight = 0.02;
// Longer than expected by this much, a step is taken for a stall.
constexpr double kStall = 3;
constexpr int kStallsToBelieve = 4;

// Solves the system of those terms that `used` has, by elimination. False if it is singular.
bool Solve(std::array<std::array<double, 3>, 3> a, std::array<double, 3> b, unsigned used,
           std::array<double, 3>* solution) {
  int index[3];
  int n = 0;
  for (int i = 0; i < 3; ++i) {
    if (used >> i & 1) index[n++] = i;
  }
  *solution = {0, 0, 0};
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

}  // namespace

double PrefillCost::Predict(const Vector& features) const {
  double seconds = 0;
  for (int i = 0; i < kTerms; ++i) seconds += coefficients_[i] * features[i];
  return seconds;
}

void PrefillCost::StepTook(const PrefillWork& work, absl::Duration took) {
  const double seconds = absl::ToDoubleSeconds(took);
  if (!(work.tokens > 0) || !(seconds > 0) || !std::isfinite(seconds)) return;
  const Vector features = {1, work.tokens, work.pairs};
  // Not by the prediction alone: of short steps among long ones it may be far off.
  const double usual = std::max(longest_s_, known() ? Predict(features) : 0);
  stalls_in_a_row_ = steps_ > 1 && seconds > kStall * usual ? stalls_in_a_row_ + 1 : 0;
  if (stalls_in_a_row_ > 0 && stalls_in_a_row_ < kStallsToBelieve) return;
  longest_s_ = std::max(longest_s_ * kKeep, seconds);
  // The error's share of the step is to be small: weighted by what the prior expects and not by
  // the time taken, or a worker that has become slow would hardly be heard.
  const double expected = kPrior[0] + kPrior[1] * work.tokens + kPrior[2] * work.pairs;
  const double weight = 1 / (expected * expected);
  for (int i = 0; i < kTerms; ++i) {
    for (int j = 0; j < kTerms; ++j) {
      moments_[i][j] = moments_[i][j] * kKeep + weight * features[i] * features[j];
    }
    targets_[i] = targets_[i] * kKeep + weight * features[i] * seconds;
  }
  pace_ = pace_ * kKeep + seconds / expected;
  pace_weight_ = pace_weight_ * kKeep + 1;
  ++steps_;
  Fit();
}

// Least squares with coefficients that are not negative: of the eight sets of terms, the one whose
// own solution is so and leaves the least error.
void PrefillCost::Fit() {
  const double pace = pace_ / pace_weight_;
  // The prior's own equations, each weighted like a step of that term alone.
  std::array<Vector, kTerms> a = moments_;
  Vector b = targets_;
  Vector best;
  for (int i = 0; i < kTerms; ++i) {
    const double weight = kPriorWeight / (kPrior[i] * kPrior[i]);
    best[i] = pace * kPrior[i];
    a[i][i] += weight;
    b[i] += weight * best[i];
  }
  double least = 0;
  for (unsigned used = 1; used < 1u << kTerms; ++used) {
    Vector x;
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
  coefficients_ = best;
}

std::optional<internal::v1::PrefillCost> PrefillCost::ToProto() const {
  if (!known()) return std::nullopt;
  internal::v1::PrefillCost cost;
  cost.set_fixed_us(fixed_us());
  cost.set_token_us(token_us());
  cost.set_pair_us(pair_us());
  return cost;
}

absl::Duration PrefillCost::TimeFor(const PrefillWork& work, int max_tokens_per_step) const {
  if (!known() || !(work.tokens > 0)) return absl::ZeroDuration();
  const double steps = std::ceil(work.tokens / std::max(1, max_tokens_per_step));
  return absl::Seconds(Predict({steps, work.tokens, work.pairs}));
}

}  // namespace baton::worker
