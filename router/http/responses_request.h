// Bodies of OpenAI's Responses API, read into the request of a chat.
//
// Every field is honoured, refused by name, or named as ignored, as those of chats are: the table
// in responses_request.cc lists all of them.
#ifndef BATON_ROUTER_HTTP_RESPONSES_REQUEST_H_
#define BATON_ROUTER_HTTP_RESPONSES_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/json/json.h"
#include "router/http/openai_request.h"

namespace baton::router {

// A function's name as the client has it.
struct NamespacedName {
  std::string name_space, name;
};

// What a request of this API has beyond one of a chat.
struct ResponsesRequest {
  std::map<std::string, NamespacedName> namespaced;  // functions of namespaces, by QualifiedName
  // Members of the response object that repeat the request: JSON, `"name":value`, with commas
  // between them.
  std::string echo;
  bool store = true;                 // the response may be continued by its id
  std::string previous_response_id;  // empty: none
  size_t lead = 0;                   // messages before those of the input: 1 with instructions
  // Set where the response is stored; called before the client has the whole answer, with the id,
  // the response object, and the messages of the answer.
  std::function<void(const std::string& id, std::string response, const json::Value& answer)> keep;
  int64_t kept_bytes = 0;  // memory that `keep` has until it is called
};

// The request has `responses`. Errors as ParseChat.
absl::StatusOr<OpenAiRequest> ParseResponses(absl::string_view body);

// The same error with the field's name in this API, in the message too.
absl::Status WithResponsesField(const absl::Status& error);

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_RESPONSES_REQUEST_H_
