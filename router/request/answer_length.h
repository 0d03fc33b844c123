// How long the answer to a request may become that sets no max_tokens.
#ifndef BATON_ROUTER_REQUEST_ANSWER_LENGTH_H_
#define BATON_ROUTER_REQUEST_ANSWER_LENGTH_H_

#include "baton/v1/inference.pb.h"
#include "router/fleet/model_info.h"
#include "router/request/request_class.h"

namespace baton::router {

// Tokens of an answer whose request sets no limit: the class' default, else the model's; 0: none.
int DefaultAnswerTokens(const ModelInfo& model, const RequestClass& request_class);

// max_tokens of such a request behind a prompt of so many tokens: DefaultAnswerTokens, or all of
// the context's `room` behind the prompt. Of the decode workers that can hold the prompt, the
// smallest KV pool bounds the result, so that each of them takes the request; yet it is never less
// than min_tokens, which the client has set. If no known decode worker can hold the prompt, KV
// pools set no bound: a worker's refusal says more than a short answer would. The result is at most
// `room`. REQUIRES: 1 <= room, min_tokens <= room.
int DefaultMaxTokens(const v1::GenerateRequest& request, const ModelInfo& model,
                     const RequestClass& request_class, int prompt_tokens, int room);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ANSWER_LENGTH_H_
