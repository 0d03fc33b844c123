// Shortens prompts that do not fit into the context, in large steps: between two steps, the prompts
// of a conversation's turns begin with the same tokens, so prefix caches serve them.
//
// With room for B tokens, a prompt of n > B tokens loses S * ceil((n - B) / S), where a step S is
// (1 - retention_ratio) * B. That depends on n and B alone: routers keep no state, and all turns
// with n within one step lose the same tokens. OpenAI's Realtime API has the same parameter.
#ifndef BATON_ROUTER_REQUEST_TRUNCATION_H_
#define BATON_ROUTER_REQUEST_TRUNCATION_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/inference.pb.h"
#include "router/fleet/model_info.h"
#include "router/request/request_class.h"

namespace baton::router {

// The ranges of the fields. INVALID_ARGUMENT, OUT_OF_RANGE; for `messages`, the numbers of tokens
// to keep are NOT_WITH_MESSAGES.
absl::Status CheckTruncation(const v1::GenerateRequest& request);

// The context of a request: the model's, or what its class allows of it.
int ContextOf(const ModelInfo& model, const RequestClass& request_class);

// Tokens for the prompt, in a context that must hold the answer, too: max_tokens, or the default,
// or else a sixteenth of the context.
int RoomForPrompt(const v1::StopConditions& stop, const ModelInfo& model,
                  const RequestClass& request_class);

// Tokens that a prompt loses at the least in one step. REQUIRES: room >= 1.
int TruncationStep(const v1::Truncation& truncation, int room);

// How many tokens after the first keep_first a prompt of `tokens` loses; 0 if it fits.
// INVALID_ARGUMENT, OUT_OF_RANGE, if keep_first and keep_last leave no room.
absl::StatusOr<int> TokensToDrop(const v1::Truncation& truncation, int64_t tokens, int room);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_TRUNCATION_H_
