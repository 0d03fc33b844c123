// Makes the tokens of a prompt from the messages of a conversation.
#ifndef BATON_ROUTER_REQUEST_CHAT_PROMPT_H_
#define BATON_ROUTER_REQUEST_CHAT_PROMPT_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/inference.pb.h"
#include "common/chat/model_chat.h"
#include "router/request/request_class.h"
#include "router/request/router_parts.h"

namespace baton::router {

// What RenderChat has made of a conversation, beside its tokens.
struct ChatPrompt {
  int dropped_tokens = 0;  // those that fewer messages have saved
  // Those of RenderedChat.
  bool ends_in_reasoning = false;
  bool ends_after_reasoning = false;
};

// Takes up to seconds for large conversations: for the threads of RouterParts::pool. Thread-safe.
//
// Sets the token ids of `request` to those of the conversation as the model's chat template writes
// it; what `tenant` has sent lately is not tokenized again. The text alone would not say which
// parts may be special tokens: with split_special_tokens, of the request or else of the router,
// only the template's own text may be. Clears the request's truncation: a prompt that is too long
// is made of fewer messages. The oldest ones go first, but no system messages at the start and not
// the last message, and the first one left has the role of the first one dropped, as templates
// demand. Errors are those of ModelChat::Render and
// Tokenizer::Encode, with the field "messages"; UNKNOWN_ROLE; EMPTY_PROMPT; PROMPT_TOO_LONG above
// --max-prompt-bytes, and if the messages do not fit in the context.
absl::StatusOr<ChatPrompt> RenderChat(const RouterParts& parts, const RequestClass& request_class,
                                      const std::string& tenant, chat::Conversation conversation,
                                      v1::GenerateRequest* request);

// The number of tokens of the conversation's prompt, also of one that does not fit in the context.
// Of `request`, only the fields about special tokens count. Otherwise as RenderChat.
absl::StatusOr<int64_t> CountChatTokens(const RouterParts& parts, const std::string& tenant,
                                        chat::Conversation conversation,
                                        const v1::GenerateRequest& request);

// Does what RenderChat does for the messages of `request`, and replaces them. Returns the
// number of dropped tokens. Changes nothing if the prompt is not given as messages.
absl::StatusOr<int> RenderMessages(const RouterParts& parts, const RequestClass& request_class,
                                   v1::GenerateRequest* request);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_CHAT_PROMPT_H_
