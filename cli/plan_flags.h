// The flags of `baton plan`. Those that a worker has too have its names and defaults.
#ifndef BATON_CLI_PLAN_FLAGS_H_
#define BATON_CLI_PLAN_FLAGS_H_

#include <optional>
#include <string>

#include "cli/plan.h"

namespace CLI {
class App;
}

namespace baton::cli {

// What is no field of the options as it stands.
struct PlanFlags {
  std::string gpu;
  std::optional<double> memory_gib, bandwidth_gbs, tflops;
  std::string dtype = "auto";
  std::string weights = "auto";
  int group_size = 128;
};

void AddPlan(CLI::App* app, PlanOptions* plan, PlanFlags* flags);
// After parsing. Throws CLI::ValidationError where flags do not go together.
void FinishPlan(const PlanFlags& flags, PlanOptions* plan);

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_FLAGS_H_
