// Items of a ScoreStream call as the outcomes of a benchmark.
#ifndef BATON_CLI_BENCH_SCORE_H_
#define BATON_CLI_BENCH_SCORE_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "baton/v1/inference.grpc.pb.h"
#include "cli/load_generator.h"

namespace baton::cli {

struct ScoreCall {
  std::string model;
  std::string prefix;
  std::vector<std::string> items;  // each follows the prefix
  std::vector<std::string> labels;
  absl::Duration timeout = absl::InfiniteDuration();
};

// Sends all items in one call and returns when it has ended, with an outcome for each item in their
// order. An outcome lasts from the start of the call to the item's result, and has one token, when
// the result came; its status is the item's, or the call's if it ended without a result.
std::vector<Outcome> ScoreItems(v1::InferenceService::Stub* stub, const ScoreCall& call);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_SCORE_H_
