// Bodies of Anthropic's Messages API, read as the requests that OpenAI's API would make of the same
// conversation: what follows the parser knows one kind of request.
//
// Every field is honoured, is refused by name, or has no effect and is named in
// OpenAiRequest::ignored. The table in anthropic_request.cc lists all of them. A null counts as
// absent, but not within a document of the client's: a schema, the input of a call.
#ifndef BATON_ROUTER_HTTP_ANTHROPIC_REQUEST_H_
#define BATON_ROUTER_HTTP_ANTHROPIC_REQUEST_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/json/json.h"
#include "router/http/openai_request.h"

namespace baton::router {

// Errors as ParseChat; their fields are those of Anthropic's API, e.g. "tools[2].input_schema".
absl::StatusOr<OpenAiRequest> ParseAnthropic(absl::string_view body);
// Parses a request that counts tokens, which has no fields that only an answer has.
absl::StatusOr<OpenAiRequest> ParseAnthropicCount(absl::string_view body);

// Parts of the above, each of which reads one field and takes the texts out of `value`.
// Writes the text of `system` as the first message.
absl::Status ReadAnthropicSystem(const std::string& name, json::Value& value,
                                 OpenAiRequest& request);
// Adds the messages. Those of one role that follow one another become one, and each result of a
// tool becomes a message of role "tool".
absl::Status ReadAnthropicMessages(const std::string& name, json::Value& value,
                                   OpenAiRequest& request);
// Checks the member `cache_control` of an object, if it has one. It has no effect: prompts are
// cached without it.
absl::Status CheckCacheControl(const std::string& at, const json::Value& object,
                               OpenAiRequest& request);
// The member `type`, a text, that Anthropic's objects have. WRONG_TYPE if `object` has none.
absl::StatusOr<std::string> TypeMember(const std::string& at, const json::Value& object);
// Adds a name to OpenAiRequest::ignored, once. `name` must not come from the client.
void IgnoreField(absl::string_view name, OpenAiRequest& request);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_ANTHROPIC_REQUEST_H_
