#include "common/backend/experts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

#include "absl/container/inlined_vector.h"
#include "common/backend/exp_log.h"
#include "common/base/check.h"

namespace baton::backend {

namespace {

// The sigmoid, with the same bits on every machine: 1 / (1 + e^-|x|) for x >= 0, e^-|x| times that
// below.
double Sigmoid(double x) {
  const double power = -std::fabs(x) * M_LOG2E, whole = std::ceil(power);
  const double fraction = static_cast<double>(FixedExp2(power - whole)) / static_cast<double>(kOne);
  const double e = std::ldexp(fraction, static_cast<int>(std::max(whole, -1000.0)));
  return (x >= 0 ? 1 : e) / (1 + e);
}

// The first experts of `order` become those with the largest values, equal ones by index.
void PutLargestFirst(absl::Span<const float> values, size_t count, absl::Span<int32_t> order) {
  std::iota(order.begin(), order.end(), 0);
  const auto value = [&](int32_t expert) { return values[static_cast<size_t>(expert)]; };
  std::partial_sort(
      order.begin(), order.begin() + static_cast<int64_t>(count), order.end(),
      [&](int32_t a, int32_t b) { return value(a) != value(b) ? value(a) > value(b) : a < b; });
}

void ChooseBySoftmax(absl::Span<const float> logits, const ExpertRouting& routing,
                     absl::Span<int32_t> order, absl::Span<ChosenExpert> chosen) {
  PutLargestFirst(logits, chosen.size(), order);
  const auto logit = [&](int32_t expert) { return double{logits[static_cast<size_t>(expert)]}; };
  const auto part = [&](int32_t expert) {
    return FixedExp2((logit(expert) - logit(order[0])) * M_LOG2E);
  };
  uint64_t total = 0;  // exact in any order
  const size_t counted = routing.normalized ? chosen.size() : order.size();
  for (size_t i = 0; i < counted; ++i) total += part(order[i]);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const double share = static_cast<double>(part(order[i])) / static_cast<double>(total);
    chosen[i] = {order[i], static_cast<float>(share * double{routing.scale})};
  }
}

void ChooseBySigmoid(absl::Span<const float> logits, absl::Span<const float> choice_bias,
                     const ExpertRouting& routing, absl::Span<int32_t> order,
                     absl::Span<ChosenExpert> chosen) {
  absl::InlinedVector<float, 256> scores(logits.begin(), logits.end());
  for (float& score : scores) score = static_cast<float>(Sigmoid(score));
  absl::InlinedVector<float, 256> biased = scores;
  for (size_t i = 0; i < choice_bias.size(); ++i) biased[i] += choice_bias[i];
  PutLargestFirst(biased, chosen.size(), order);
  double total = routing.normalized ? 0 : 1;
  for (size_t i = 0; routing.normalized && i < chosen.size(); ++i) {
    total += double{scores[static_cast<size_t>(order[i])]};
  }
  constexpr double kLeastTotal = 1e-20;  // as in DeepSeek-V3, where all scores may be 0
  for (size_t i = 0; i < chosen.size(); ++i) {
    const double share = double{scores[static_cast<size_t>(order[i])]} / (total + kLeastTotal);
    chosen[i] = {order[i], static_cast<float>(share * double{routing.scale})};
  }
}

}  // namespace

void ChooseExperts(absl::Span<const float> logits, absl::Span<const float> choice_bias,
                   const ExpertRouting& routing, absl::Span<ChosenExpert> chosen) {
  BATON_CHECK_EQ(chosen.size(), static_cast<size_t>(routing.per_token));
  BATON_CHECK_LE(chosen.size(), logits.size());
  BATON_CHECK(choice_bias.empty() || (routing.sigmoid && choice_bias.size() == logits.size()));
  // NaN has no place in an order.
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
    for (size_t i = 0; i < chosen.size(); ++i) {
      chosen[i] = {static_cast<int32_t>(i), std::numeric_limits<float>::quiet_NaN()};
    }
    return;
  }
  absl::InlinedVector<int32_t, 256> order(logits.size());
  if (routing.sigmoid) {
    ChooseBySigmoid(logits, choice_bias, routing, absl::MakeSpan(order), chosen);
  } else {
    ChooseBySoftmax(logits, routing, absl::MakeSpan(order), chosen);
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const ChosenExpert& a, const ChosenExpert& b) { return a.expert < b.expert; });
}

}  // namespace baton::backend
