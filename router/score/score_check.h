// Checks of scoring calls that need neither the tokenizer nor a worker.
#ifndef BATON_ROUTER_SCORE_SCORE_CHECK_H_
#define BATON_ROUTER_SCORE_SCORE_CHECK_H_

#include "absl/status/status.h"
#include "baton/v1/inference.pb.h"
#include "router/options.h"

namespace baton::router {

// What concerns all items. A `stream` has none beside its settings, another call 1 to
// kMaxScoreItems. INVALID_ARGUMENT naming the field; NOT_FOUND for another model.
absl::Status CheckScoreRequest(const v1::ScoreRequest& request, bool stream,
                               const Options& options);

// The parts that a scoring call has in common with a GenerateRequest: model, request_id, tenant,
// priority, cache_salt.
v1::GenerateRequest NamesOf(const v1::ScoreRequest& request);

}  // namespace baton::router

#endif  // BATON_ROUTER_SCORE_SCORE_CHECK_H_
