// `baton plan`: reports a model's memory on a GPU, the sequences that fit, and best-case latency.
// Needs neither a cluster nor a GPU, and only config.json of the model's directory. With --cluster:
// plan_cluster.h.
#ifndef BATON_CLI_PLAN_H_
#define BATON_CLI_PLAN_H_

#include <ostream>
#include <string>
#include <vector>

#include "cli/plan_cluster.h"
#include "common/engine/fitting_settings.h"
#include "common/engine/serving_plan.h"
#include "common/kv_store/tier_spec.h"

namespace baton::cli {

struct PlanOptions {
  engine::ServingQuestion question;
  std::vector<kv_store::TierSpec> tiers;  // of the prefill workers
  bool json = false;
  ClusterPlanOptions cluster;  // if wanted, the plan is that of a cluster
};

// Prints the plan on `out`. Returns the exit code: 0 if the model fits and Baton serves it, else 1
// with the reason on `err`.
int RunPlan(const PlanOptions& options, std::ostream& out, std::ostream& err);

// The default output, a table, and that of --json, one object. `fitting`: what makes the plan fit
// if it does not.
std::string PlanTable(const engine::ServingPlan& plan,
                      const std::vector<kv_store::TierSpec>& tiers = {},
                      const std::vector<engine::FittingSetting>& fitting = {});
std::string PlanJson(const engine::ServingPlan& plan,
                     const std::vector<kv_store::TierSpec>& tiers = {},
                     const std::vector<engine::FittingSetting>& fitting = {});

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_H_
