// Fields that change nothing of an answer, so that requests with them are served all the same: most
// are named in OpenAiRequest::ignored, for the header x-baton-ignored and for --strict-fields.
#ifndef BATON_ROUTER_HTTP_OPENAI_HINTS_H_
#define BATON_ROUTER_HTTP_OPENAI_HINTS_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_request.h"

namespace baton::router {

// Each reads one field. INVALID_ARGUMENT naming it, for a value that OpenAI's API does not have.

// An object of texts: what the client files the request under.
absl::Status ReadMetadata(absl::string_view name, const json::Value& value, OpenAiRequest& request);
// Whether the answer is kept: Baton keeps none.
absl::Status ReadStore(absl::string_view name, const json::Value& value, OpenAiRequest& request);
absl::Status ReadServiceTier(absl::string_view name, const json::Value& value,
                             OpenAiRequest& request);
// A text that some models of OpenAI take as advice.
absl::Status ReadAdvice(absl::string_view name, const json::Value& value, OpenAiRequest& request);
// {"type", "content"}: a text that the answer may repeat, with which it might come sooner.
absl::Status ReadPrediction(absl::string_view name, const json::Value& value,
                            OpenAiRequest& request);
// The older form of tools: only a list without any.
absl::Status ReadFunctions(absl::string_view name, const json::Value& value,
                           OpenAiRequest& request);
// The older form of tool_choice: only what is so without functions.
absl::Status ReadFunctionCall(absl::string_view name, const json::Value& value,
                              OpenAiRequest& request);
// A text for caches, or a name of the end user: equal prefixes are found without it, so it is not
// named as ignored.
absl::Status ReadHint(absl::string_view name, const json::Value& value, OpenAiRequest& request);

// Accepts options of a stream, and top_logprobs 0, for an answer that has neither, once all fields
// are read. INVALID_ARGUMENT: ONLY_WITH_LOGPROBS.
absl::Status SettleHints(OpenAiRequest& request);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_HINTS_H_
