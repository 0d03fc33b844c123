// What workers cost and hold, for `baton plan --cluster`: measured by a cluster that runs, as its
// router tells it, or bounds computed from the model and the GPU.
#ifndef BATON_CLI_CLUSTER_COSTS_H_
#define BATON_CLI_CLUSTER_COSTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/admin.pb.h"
#include "cli/router_flags.h"
#include "common/engine/serving_plan.h"
#include "simulator/sim_decode_worker.h"
#include "simulator/sim_worker.h"

namespace baton::cli {

struct ClusterCosts {
  std::string source;  // for people: "measured by ...", "floors of ..."
  simulator::PrefillCost prefill;
  int prefill_step_tokens = 2048;  // --max-num-batched-tokens of prefill workers
  int prefill_max_num_seqs = 64;
  int64_t prefill_kv_tokens = 0;  // of the pool
  simulator::DecodeCost decode;
  int decode_max_num_seqs = 64;
  int64_t decode_kv_tokens = 0;
  double kv_bytes_per_token = 0;
  double link_bytes_per_second = 0;  // 0: not measured
};

// The means over the workers of each role; of prompts over decode workers if no prefill worker has
// measured any. FAILED_PRECONDITION if no worker has measured steps of prompts, or no decode worker
// those of answers, or if the router's version does not tell costs. INVALID_ARGUMENT with the field
// if a number is out of bounds.
absl::StatusOr<ClusterCosts> CostsOfLoads(const v1::GetLoadsResponse& loads,
                                          const std::string& router);
// Asks the router, for at most `timeout`. Errors are the call's, or as above.
absl::StatusOr<ClusterCosts> FetchCosts(const std::string& router, const RouterAccess& access,
                                        absl::Duration timeout);

// One JSON object, and back. Fails with the file's name and the field: NOT_FOUND,
// INVALID_ARGUMENT.
std::string CostsJson(const ClusterCosts& costs);
absl::StatusOr<ClusterCosts> ReadCosts(const std::string& path);

// The floors of a plan's model and GPU, each divided by `efficiency`, above 0 and at most 1. A step
// counts both the reading of the weights and the products of its tokens, though a floor is the
// longer of the two. Pools are counted as if all layers kept all tokens. Errors are those of
// PlanServing, and the plan's refusal.
absl::StatusOr<ClusterCosts> FloorCosts(const engine::ServingQuestion& question, double efficiency);

}  // namespace baton::cli

#endif  // BATON_CLI_CLUSTER_COSTS_H_
