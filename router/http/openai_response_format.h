// The fields that ask for structured output: OpenAI's response_format, vLLM's structured_outputs.
#ifndef BATON_ROUTER_HTTP_OPENAI_RESPONSE_FORMAT_H_
#define BATON_ROUTER_HTTP_OPENAI_RESPONSE_FORMAT_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/json/json.h"
#include "router/http/openai_request.h"

namespace baton::router {

// {"type": "text" | "json_object"}, or {"type": "json_schema", "json_schema": {"name", "schema",
// "strict", "description"}}. INVALID_ARGUMENT naming the field.
absl::Status ReadResponseFormat(absl::string_view name, const json::Value& value,
                                OpenAiRequest& request);

// One of {"json": a schema or its text}, {"regex": text}, {"choice": [texts]}, {"json_object":
// true}.
absl::Status ReadStructuredOutputs(absl::string_view name, const json::Value& value,
                                   OpenAiRequest& request);

// The names that vLLM had before structured_outputs: guided_json, guided_regex or guided_choice.
absl::Status ReadGuidedDecoding(absl::string_view name, const json::Value& value,
                                OpenAiRequest& request);

// An extension: true lifts the bound of white space in JSON. SettleAnyWhitespace applies it once it
// is known whether anything is constrained, and else names it as ignored.
absl::Status ReadAnyWhitespace(absl::string_view name, const json::Value& value,
                               OpenAiRequest& request);
void SettleAnyWhitespace(OpenAiRequest& request);

// Lets the answer reason before what is constrained, if anything is. `ends_in_reasoning` and
// `ends_after_reasoning` are those of the prompt (RenderedChat).
void LetReason(chat::ReasoningFormat format, bool ends_in_reasoning, bool ends_after_reasoning,
               v1::GenerateRequest& request);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_RESPONSE_FORMAT_H_
