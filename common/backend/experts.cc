#include "common/backend/experts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "common/backend/exp_log.h"
#include "common/base/check.h"

namespace baton::backend {

void ChooseExperts(absl::Span<const float> logits, const ExpertRouting& routing,
                   absl::Span<ChosenExpert> chosen) {
  BATON_CHECK_EQ(chosen.size(), static_cast<size_t>(routing.per_token));
  BATON_CHECK_LE(chosen.size(), logits.size());
  // A heap or a sort would need an order, which NaN has not.
  size_t count = 0;
  const auto is_chosen = [&](size_t expert) {
    return std::any_of(
        chosen.begin(), chosen.begin() + static_cast<ptrdiff_t>(count),
        [&](const ChosenExpert& each) { return each.expert == static_cast<int32_t>(expert); });
  };
  while (count < chosen.size()) {
    size_t best = logits.size();
    for (size_t i = 0; i < logits.size(); ++i) {
      const bool better = best == logits.size() || logits[i] > logits[best];
      if (better && !is_chosen(i)) best = i;
    }
    chosen[count++] = {static_cast<int32_t>(best), 0};
  }
  const float largest = logits[static_cast<size_t>(chosen[0].expert)];
  const auto weight = [&](float logit) {
    return FixedExp2((double{logit} - double{largest}) * M_LOG2E);
  };
  uint64_t total = 0;
  bool finite = true;
  for (const float logit : logits) {
    finite = finite && std::isfinite(logit);
    if (!routing.normalized) total += weight(logit);
  }
  for (const ChosenExpert& each : chosen) {
    if (routing.normalized) total += weight(logits[static_cast<size_t>(each.expert)]);
  }
  for (ChosenExpert& each : chosen) {
    each.weight = finite
                      ? static_cast<float>(
                            static_cast<double>(weight(logits[static_cast<size_t>(each.expert)])) /
                            static_cast<double>(total))
                      : std::numeric_limits<float>::quiet_NaN();
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const ChosenExpert& a, const ChosenExpert& b) { return a.expert < b.expert; });
}

}  // namespace baton::backend
