// `baton plan --cluster`: how many prefill and decode workers a load needs to keep its objectives,
// by simulated clusters of different sizes.
#ifndef BATON_CLI_PLAN_CLUSTER_H_
#define BATON_CLI_PLAN_CLUSTER_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "cli/cluster_costs.h"
#include "cli/router_flags.h"
#include "simulator/cluster_plan.h"
#include "simulator/load_generator.h"
#include "simulator/trace.h"

namespace baton::cli {

struct ClusterPlanOptions {
  bool wanted = false;  // --cluster
  // The load: a file in Mooncake's format, else generated at `rate` requests a second.
  std::string trace;
  double rate = 0;
  simulator::LoadShape shape;  // of a generated load
  int requests = 0;            // at most so many of a trace; 0: all. Of a generated load: so many
  double speed = 1;
  int answer_tokens = 0;  // of requests whose answer's length the trace does not have; 0: none
  // The costs: of a running cluster, of a file, or else floors.
  std::string costs_of;
  RouterAccess access;
  std::string costs_file, save_costs;
  double efficiency = 0.6;
  double link_gbits = 0;  // 0: as measured, or 10
  int routers = 1;
  double slo_ttft_ms = 0, slo_inter_token_ms = 0;
  double prefill_price = 1, decode_price = 1;
  int most_prefill = 64, most_decode = 64;
  int max_local_prefill_tokens = 16'384;  // as the router's; 0: decode workers compute no prompts
};

// Prints the plan on `out`, progress and errors on `err`. `question`: the model and the GPU, for
// floors. Returns the exit code: 0 if a size keeps the objectives, 1 if none does or the model does
// not fit into the GPU's memory, else that of the error (common/base/exit_code.h).
int RunClusterPlan(const ClusterPlanOptions& options, const engine::ServingQuestion& question,
                   bool json, std::ostream& out, std::ostream& err);

// Returns the load at speed 1, whose first request comes at 0. Errors name the file, and the line
// or the request by its number in order of arrival, from 1. INVALID_ARGUMENT also if a generated
// load would be longer than kLongestLoad_s.
absl::StatusOr<simulator::Trace> LoadOf(const ClusterPlanOptions& options);
// REQUIRES: the options have objectives.
simulator::ClusterQuestion QuestionOf(const ClusterPlanOptions& options, const ClusterCosts& costs);

// The default output, and that of --json, one object.
std::string ClusterPlanTable(const simulator::ClusterPlan& plan, const simulator::Trace& trace,
                             const simulator::ClusterQuestion& question, const ClusterCosts& costs);
std::string ClusterPlanJson(const simulator::ClusterPlan& plan, const simulator::Trace& trace,
                            const simulator::ClusterQuestion& question, const ClusterCosts& costs);

}  // namespace baton::cli

#endif  // BATON_CLI_PLAN_CLUSTER_H_
