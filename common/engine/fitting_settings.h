// Settings with which a model fits that does not as it was asked for.
#ifndef BATON_COMMON_ENGINE_FITTING_SETTINGS_H_
#define BATON_COMMON_ENGINE_FITTING_SETTINGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/engine/serving_plan.h"

namespace baton::engine {

struct FittingSetting {
  std::string flags;      // of a worker and of `baton plan`: "--weights int4"
  int context = 0;        // tokens of a sequence: the question's, or what `flags` say
  int64_t sequences = 0;  // of `context` tokens that fit then, 1 or more
};

// Returns the settings with which a sequence of the question fits, each tried alone by a plan of
// its own: --weights int8 and int4, and of each other setting the value that changes the least. If
// no setting suffices alone, each is tried beside --weights int4. `plan` is PlanServing(question).
// Returns nothing if a sequence fits as it is, if Baton does not serve the model, or if none of
// these settings makes one fit.
std::vector<FittingSetting> SettingsThatFit(const ServingQuestion& question,
                                            const ServingPlan& plan);

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_FITTING_SETTINGS_H_
