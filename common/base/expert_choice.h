// How many of a layer's experts a batch reads. The floors of plans, the fits of decode steps'
// times, and routers' prices count with it.
#ifndef BATON_COMMON_BASE_EXPERT_CHOICE_H_
#define BATON_COMMON_BASE_EXPERT_CHOICE_H_

#include <cmath>

namespace baton {

struct ExpertChoice {
  int experts = 0;  // 0: the layer has none
  int per_token = 0;

  // Distinct experts that `tokens` tokens are expected to choose, each evenly and on its own. At
  // most `experts`; a real router's choices are less even, so they are fewer.
  double Distinct(double tokens) const {
    if (experts == 0) return 0;
    const double missed = 1 - static_cast<double>(per_token) / experts;
    return experts * (1 - std::pow(missed, tokens));
  }
  friend bool operator==(const ExpertChoice&, const ExpertChoice&) = default;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_EXPERT_CHOICE_H_
