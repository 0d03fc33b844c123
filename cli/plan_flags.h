// The flags of `baton plan`. Flags shared with the workers keep their names and defaults.
#ifndef BATON_CLI_PLAN_FLAGS_H_
#define BATON_CLI_PLAN_FLAGS_H_

#include <optional>
#include <string>

#include "cli/plan.h"
#include "cli/plan_cluster_flags.h"

namespace CLI {
class App;
}

namespace baton::cli {

// Values that FinishPlan() converts to fields of PlanOptions.
struct PlanFlags {
  std::string gpu;
  std::optional<double> memory_gib, bandwidth_gbs, host_gbs, tflops;
  std::string dtype = "auto";
  std::string kv_cache_dtype = "auto";
  std::string kv_tier;
  std::string weights = "auto";
  int group_size = 128;
  std::string experts_on_host = "0";
  ClusterPlanFlags cluster;
};

void AddPlan(CLI::App* app, PlanOptions* plan, PlanFlags* flags);
// Call after parsing. Throws CLI::RequiredError if the model or the GPU is missing, which a cluster
// with measured costs does not need, and CLI::ValidationError if flags contradict each other.
void FinishPlan(const PlanFlags& flags, PlanOptions* plan);

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_FLAGS_H_
