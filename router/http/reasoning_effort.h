// `reasoning_effort`: how much a model is to reason before it answers.
#ifndef BATON_ROUTER_HTTP_REASONING_EFFORT_H_
#define BATON_ROUTER_HTTP_REASONING_EFFORT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/chat/model_chat.h"
#include "common/json/json.h"
#include "router/http/openai_request.h"

namespace baton::router {

// Those of OpenAI and vLLM.
inline constexpr absl::string_view kReasoningEfforts[] = {"none", "minimal", "low", "medium",
                                                          "high", "xhigh",   "max"};

// Reads the field. OUT_OF_RANGE for a text that is none of kReasoningEfforts.
absl::Status ReadReasoningEffort(absl::string_view name, const json::Value& value,
                                 OpenAiRequest& request);

// Makes the effort variables of the chat template: `reasoning_effort` is the effort itself, and
// `enable_thinking` and `thinking` are false for "none" and else true; each if the template reads
// it. The request's chat_template_kwargs stay: one of the two switches there keeps both as they
// are. If the template reads none of the three, the field is added to the request's ignored ones.
void ApplyReasoningEffort(const chat::ModelChat& chat, OpenAiRequest* request);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_REASONING_EFFORT_H_
