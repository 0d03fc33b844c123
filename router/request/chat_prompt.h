// Makes the text of a prompt from the messages of a conversation.
#ifndef BATON_ROUTER_REQUEST_CHAT_PROMPT_H_
#define BATON_ROUTER_REQUEST_CHAT_PROMPT_H_

#include "absl/status/status.h"
#include "baton/v1/inference.pb.h"
#include "common/chat/model_chat.h"
#include "router/request/router_parts.h"

namespace baton::router {

// Takes up to seconds for large conversations: for the threads of RouterParts::pool. Thread-safe.
//
// Sets the text of `request` to the conversation as the model's chat template writes it. Errors are
// those of ModelChat::Render, with the field "messages".
absl::Status RenderChat(const RouterParts& parts, const chat::Conversation& conversation,
                        v1::GenerateRequest* request);

// The same for the messages of `request`, which are replaced; PROMPT_TOO_LONG above
// --max-prompt-bytes. Changes nothing if the prompt is not given as messages.
absl::Status RenderMessages(const RouterParts& parts, v1::GenerateRequest* request);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_CHAT_PROMPT_H_
