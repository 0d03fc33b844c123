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

void ChooseExperts(absl::Span<const float> logits, const ExpertRouting& routing,
                   absl::Span<ChosenExpert> chosen) {
  BATON_CHECK_EQ(chosen.size(), static_cast<size_t>(routing.per_token));
  BATON_CHECK_LE(chosen.size(), logits.size());
  // NaN has no place in an order.
  if (!std::all_of(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); })) {
    for (size_t i = 0; i < chosen.size(); ++i) {
      chosen[i] = {static_cast<int32_t>(i), std::numeric_limits<float>::quiet_NaN()};
    }
    return;
  }
  absl::InlinedVector<int32_t, 256> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](int32_t expert) { return logits[static_cast<size_t>(expert)]; };
  std::partial_sort(
      order.begin(), order.begin() + routing.per_token, order.end(),
      [&](int32_t a, int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  const double largest = logit(order[0]);
  const auto weight = [&](int32_t expert) {
    return FixedExp2((double{logit(expert)} - largest) * M_LOG2E);
  };
  uint64_t total = 0;
  const size_t counted = routing.normalized ? chosen.size() : order.size();
  for (size_t i = 0; i < counted; ++i) total += weight(order[i]);
  for (size_t i = 0; i < chosen.size(); ++i) {
    chosen[i] = {order[i], static_cast<float>(static_cast<double>(weight(order[i])) /
                                              static_cast<double>(total))};
  }
  std::sort(chosen.begin(), chosen.end(),
            [](const ChosenExpert& a, const ChosenExpert& b) { return a.expert < b.expert; });
}

}  // namespace baton::backend
