// The flags of `baton plan --cluster`.
#ifndef BATON_CLI_PLAN_CLUSTER_FLAGS_H_
#define BATON_CLI_PLAN_CLUSTER_FLAGS_H_

#include <vector>

#include "cli/plan_cluster.h"

namespace CLI {
class App;
}

namespace baton::cli {

// Values that FinishClusterPlan() converts to fields of ClusterPlanOptions.
struct ClusterPlanFlags {
  std::vector<int> prompt_lengths = {64, 2048}, answer_lengths = {16, 512};
};

void AddClusterPlan(CLI::App* app, ClusterPlanOptions* cluster, ClusterPlanFlags* flags);
// Call after parsing, if --cluster is given. Throws CLI::ValidationError if flags are missing or
// contradict each other. Returns whether the costs are floors, which need the model and the GPU.
bool FinishClusterPlan(const ClusterPlanFlags& flags, ClusterPlanOptions* cluster);

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_CLUSTER_FLAGS_H_
