// Bodies of OpenAI's completion and chat requests, and vLLM's additional fields.
//
// Every field is honoured, refused by name, or named as ignored: none is ignored in silence. The
// tables in openai_request.cc list all of them. A null counts as absent, at any depth; but not
// within a document of the client's: a schema, a tool's parameters, a call's arguments, template
// variables.
#ifndef BATON_ROUTER_HTTP_OPENAI_REQUEST_H_
#define BATON_ROUTER_HTTP_OPENAI_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/internal/v1/worker.pb.h"
#include "baton/v1/inference.pb.h"
#include "common/chat/model_chat.h"

namespace baton::router {

// Prompts of one request. Each takes a place among --max-inflight-requests.
inline constexpr size_t kMaxPrompts = 64;
// OpenAI's default for completions.
inline constexpr int kCompletionMaxTokens = 16;

struct ResponsesRequest;  // responses_request.h

struct OpenAiRequest {
  v1::GenerateRequest generate;  // without the prompt
  // Completions: 1 to kMaxPrompts messages with nothing but a prompt.
  std::vector<v1::GenerateRequest> prompts;
  bool echo = false;  // the prompt is part of the answer
  bool stream = false;
  bool include_usage = false;     // a last chunk with the usage
  bool continuous_usage = false;  // the usage so far in every chunk
  // Chat only. Each message's `content` is a string or null; no other field is null. It has no
  // tools if the model is not to call any.
  chat::Conversation conversation;
  bool parallel_tool_calls = true;
  bool requires_call = false;   // of any tool
  std::string required_tool;    // the one that is called; empty: the model decides
  bool any_whitespace = false;  // of what is constrained to JSON
  bool include_reasoning = true;
  std::string reasoning_effort;  // one of kReasoningEfforts, or empty: ApplyReasoningEffort
  std::string reasoning_effort_field = "reasoning_effort";  // its name in the API
  // Fields that were accepted and have no effect, in the order of the body.
  std::vector<std::string> ignored;
  std::shared_ptr<ResponsesRequest> responses;  // of the Responses API; null for other APIs
  // About what the JSON values of the body take in memory until the prompt is rendered; those of
  // `conversation` are a part.
  int64_t json_bytes = 0;
  // Only the parser uses these.
  std::optional<int32_t> max_completion_tokens;
  bool wants_logprobs = false;
  std::optional<int32_t> top_logprobs;
  int best_of = 1;
  bool may_call_tools = true;
  // The fields of conversation.tools, such as "tools[2]", for errors to name; empty: "tools" and
  // the index, as the request has no others.
  std::vector<std::string> tool_places;
};

// INVALID_ARGUMENT that names the field: UNKNOWN_FIELD, UNSUPPORTED_FIELD, WRONG_TYPE,
// MISSING_FIELD or OUT_OF_RANGE. MALFORMED_JSON if the body is no JSON object. Ranges that
// request_check.h knows are not checked here.
absl::StatusOr<OpenAiRequest> ParseCompletion(absl::string_view body);
absl::StatusOr<OpenAiRequest> ParseChat(absl::string_view body);

// Parts of ParseChat, for APIs whose conversations become those of a chat. ReadChatField reads one
// field of a chat's body by its name, FinishChat settles the request once all fields are read.
absl::Status ReadChatField(absl::string_view name, const json::Value& value,
                           OpenAiRequest& request);
absl::Status FinishChat(OpenAiRequest& request);

// Parts of ParseChat, each of which reads one field.
absl::Status TakeMessages(absl::string_view name, json::Value value, OpenAiRequest& request);
absl::Status ReadTools(absl::string_view name, const json::Value& value, OpenAiRequest& request);
absl::Status ReadToolChoice(absl::string_view name, const json::Value& value,
                            OpenAiRequest& request);
// What decides how calls can be constrained.
struct CallConstraints {
  const chat::ToolCallSyntax* syntax = nullptr;  // how the model writes calls; null: not known
  internal::v1::GrammarLevel level = internal::v1::GRAMMAR_LEVEL_MESSAGES;  // of the workers
  bool parts_messages = true;  // clients get the messages of an answer apart
};
// Constrains the answer to what tool_choice and strict tools ask for. Where calls cannot be
// constrained, strict tools are as others, and named in `ignored`. INVALID_ARGUMENT naming the
// field if what is asked for cannot be done. After ParseChat.
absl::Status ForceTools(const CallConstraints& constraints, OpenAiRequest& request);
// What AnswerParts reads of the request's tools: their names and, where calls in `format` do not
// quote their values, their parameters. It lives until the answer ends, so its values do not count
// in `json_bytes` any more, which end earlier. After ParseChat.
std::shared_ptr<const json::Value> KeepToolsOfAnswer(chat::ToolCallFormat format,
                                                     OpenAiRequest& request);
// Checks a message's tool calls and drops their nulls. REQUIRES: `value` is not null.
absl::Status ReadToolCalls(const std::string& name, json::Value& value);
// True if OpenAI's API, or the chat template of a model that reasons, has a field of that name in a
// message.
bool IsMessageField(absl::string_view name);
// Removes the members of an object that are null, except `kept`: a template tells a null variable
// from an absent one.
void DropNulls(json::Value& object, absl::string_view kept = "");

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_OPENAI_REQUEST_H_
