// Bodies of OpenAI's completion and chat requests, and vLLM's additional fields.
//
// Every field is either honoured or refused by name: no field is ignored in silence. The tables in
// openai_request.cc list all of them. A null counts as absent.
#ifndef BATON_ROUTER_HTTP_OPENAI_REQUEST_H_
#define BATON_ROUTER_HTTP_OPENAI_REQUEST_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"
#include "common/chat/model_chat.h"

namespace baton::router {

struct OpenAiRequest {
  v1::GenerateRequest generate;  // of chat, without the prompt
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // the usage so far in every chunk
  // Chat only. Each message's `content` is a string or null.
  chat::Conversation conversation;
  bool has_max_completion_tokens = false;
  bool wants_logprobs = false;
};

// INVALID_ARGUMENT that names the field: UNKNOWN_FIELD, UNSUPPORTED_FIELD, WRONG_TYPE,
// MISSING_FIELD or OUT_OF_RANGE. MALFORMED_JSON if the body is no JSON object. Ranges that
// request_check.h knows are not checked here.
absl::StatusOr<OpenAiRequest> ParseCompletion(absl::string_view body);
absl::StatusOr<OpenAiRequest> ParseChat(absl::string_view body);

// A part of ParseChat: reads the field `messages`.
absl::Status ReadMessages(absl::string_view name, const json::Value& value, OpenAiRequest& request);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_REQUEST_H_
