#include "router/request/chat_prompt.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/tokenizer.h"
#include "router/fleet/roster.h"
#include "router/options.h"
#include "router/request/request_check.h"
#include "router/request/tokenized_texts.h"
#include "router/request/truncation.h"

namespace baton::router {
namespace {

const std::string& TextOf(const json::Value& message, absl::string_view field) {
  static const std::string kNone;
  const json::Value* value = message.Find(field);
  return value == nullptr ? kNone : value->scalar.text;
}

absl::Status OfMessages(const absl::Status& error) {
  return WithDetails(error, "", "messages", /*retry_after=*/std::nullopt);
}

// How many messages may go: each number that leaves the first of the others with the role of the
// first of all. `lead`: system messages at the start.
std::vector<size_t> CutsOf(const std::vector<json::Value>& messages, size_t lead) {
  std::vector<size_t> cuts;
  for (size_t i = lead + 1; i < messages.size(); ++i) {
    if (TextOf(messages[i], "role") == TextOf(messages[lead], "role")) cuts.push_back(i - lead);
  }
  return cuts;
}

struct RenderedTokens {
  TokenizedTexts::SharedIds ids;
  bool ends_in_reasoning = false;
  bool ends_after_reasoning = false;
};

// `tenant`: its recent texts are reused; null: none is, and the text is not kept for others.
absl::StatusOr<RenderedTokens> TokensOf(const RouterParts& parts, const std::string* tenant,
                                        chat::Conversation conversation,
                                        const v1::GenerateRequest& request) {
  chat::RenderLimits limits;
  limits.max_output_bytes = static_cast<size_t>(parts.options.max_prompt_bytes) + 1;
  absl::StatusOr<chat::RenderedChat> rendered =
      parts.chat.Render(std::move(conversation), parts.clock.Now(), limits);
  if (!rendered.ok()) return OfMessages(rendered.status());
  BATON_RETURN_IF_ERROR(CheckText("messages", rendered->text, parts.options.max_prompt_bytes));
  // One BOS token only.
  const bool special = !rendered->starts_with_bos &&
                       (!request.has_add_special_tokens() || request.add_special_tokens());
  absl::StatusOr<TokenizedTexts::SharedIds> tokens;
  if (tenant != nullptr && parts.tokenized != nullptr) {
    tokens = parts.tokenized->Encode(*tenant, std::move(rendered->text), special, rendered->split);
  } else {
    auto ids = parts.tokenizer.Encode(rendered->text, special, rendered->split);
    if (!ids.ok()) return OfMessages(ids.status());
    tokens = std::make_shared<const std::vector<int32_t>>(*std::move(ids));
  }
  if (!tokens.ok()) return OfMessages(tokens.status());
  if ((*tokens)->empty()) {
    return InvalidField("EMPTY_PROMPT", "messages", "the prompt has no tokens");
  }
  return RenderedTokens{*std::move(tokens), rendered->ends_in_reasoning,
                        rendered->ends_after_reasoning};
}

// Makes `prompt`, the tokens of the whole conversation, those without the oldest messages: the
// fewest that have as many tokens as truncation takes from a prompt of this length.
absl::StatusOr<int> DropMessages(const RouterParts& parts, int room,
                                 const chat::Conversation& whole,
                                 const v1::GenerateRequest& request, RenderedTokens* prompt) {
  const auto tokens = static_cast<int64_t>(prompt->ids->size());
  if (tokens <= room) return 0;
  const std::vector<json::Value>& messages = whole.messages.items;
  size_t lead = 0;
  while (lead + 1 < messages.size() && (TextOf(messages[lead], "role") == "system" ||
                                        TextOf(messages[lead], "role") == "developer")) {
    ++lead;
  }
  const std::vector<size_t> cuts = CutsOf(messages, lead);
  if (cuts.empty() || room < 1) return TooLong("messages", tokens, std::max(room, 0) + 1);
  const int64_t step = TruncationStep(request.truncation(), room);
  const int64_t most = tokens - (tokens - room + step - 1) / step * step;
  int64_t left = 0;
  const auto render = [&](size_t cut) -> absl::Status {
    chat::Conversation rest = whole;
    const auto first = rest.messages.items.begin() + static_cast<std::ptrdiff_t>(lead);
    rest.messages.items.erase(first, first + static_cast<std::ptrdiff_t>(cuts[cut]));
    // One of several tries.
    BATON_ASSIGN_OR_RETURN(*prompt, TokensOf(parts, /*tenant=*/nullptr, std::move(rest), request));
    left = static_cast<int64_t>(prompt->ids->size());
    return absl::OkStatus();
  };
  size_t low = 0, high = cuts.size() - 1;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    BATON_RETURN_IF_ERROR(render(middle));
    if (left <= most) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  BATON_RETURN_IF_ERROR(render(low));
  if (left > room) return TooLong("messages", left, room + 1);
  return static_cast<int>(tokens - left);
}

absl::Status CheckRoles(const chat::ModelChat& chat, const json::Value& messages) {
  for (size_t i = 0; i < messages.items.size(); ++i) {
    const std::string& role = TextOf(messages.items[i], "role");
    if (chat.KnowsRole(role)) continue;
    return InvalidField("UNKNOWN_ROLE", absl::StrCat("messages[", i, "].role"),
                        absl::StrCat(json::Quoted(role),
                                     " given; system, developer, user, assistant, tool, "
                                     "function or a role of the model's chat template expected"));
  }
  return absl::OkStatus();
}

// Checks the roles, and sets which texts may spell special tokens.
absl::Status Settle(const RouterParts& parts, const v1::GenerateRequest& request,
                    chat::Conversation* conversation) {
  conversation->split_special_tokens = request.has_split_special_tokens()
                                           ? request.split_special_tokens()
                                           : parts.options.split_special_tokens;
  return parts.chat.has_template() ? CheckRoles(parts.chat, conversation->messages)
                                   : absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatPrompt> RenderChat(const RouterParts& parts, const RequestClass& request_class,
                                      const std::string& tenant, chat::Conversation conversation,
                                      v1::GenerateRequest* request) {
  BATON_RETURN_IF_ERROR(Settle(parts, *request, &conversation));
  // Truncation may render it again.
  chat::Conversation whole;
  if (request->has_truncation()) whole = conversation;
  RenderedTokens tokens;
  BATON_ASSIGN_OR_RETURN(tokens, TokensOf(parts, &tenant, std::move(conversation), *request));
  int dropped = 0;
  if (const std::optional<ModelInfo> model = parts.roster.model()) {
    if (request->has_truncation()) {
      const int room = RoomForPrompt(request->stop(), *model, request_class);
      BATON_ASSIGN_OR_RETURN(dropped, DropMessages(parts, room, whole, *request, &tokens));
    }
    const int context = ContextOf(*model, request_class);
    const auto count = static_cast<int64_t>(tokens.ids->size());
    if (count >= context) return TooLong("messages", count, context);
  }
  request->mutable_token_ids()->mutable_ids()->Assign(tokens.ids->begin(), tokens.ids->end());
  request->clear_truncation();
  return ChatPrompt{dropped, tokens.ends_in_reasoning, tokens.ends_after_reasoning};
}

absl::StatusOr<int64_t> CountChatTokens(const RouterParts& parts, const std::string& tenant,
                                        chat::Conversation conversation,
                                        const v1::GenerateRequest& request) {
  BATON_RETURN_IF_ERROR(Settle(parts, request, &conversation));
  BATON_ASSIGN_OR_RETURN(const RenderedTokens tokens,
                         TokensOf(parts, &tenant, std::move(conversation), request));
  return static_cast<int64_t>(tokens.ids->size());
}

absl::StatusOr<int> RenderMessages(const RouterParts& parts, const RequestClass& request_class,
                                   v1::GenerateRequest* request) {
  if (!request->has_messages()) return 0;
  chat::Conversation conversation;
  conversation.messages.kind = json::Value::Kind::kArray;
  for (v1::ChatMessage& message : *request->mutable_messages()->mutable_messages()) {
    json::Value& object = conversation.messages.items.emplace_back();
    json::AddMember("role", json::TextValue(std::move(*message.mutable_role())), &object);
    json::AddMember("content", json::TextValue(std::move(*message.mutable_content())), &object);
  }
  if (!request->has_add_special_tokens()) request->set_add_special_tokens(false);
  const std::string tenant = request->tenant();
  BATON_ASSIGN_OR_RETURN(const ChatPrompt prompt, RenderChat(parts, request_class, tenant,
                                                             std::move(conversation), request));
  return prompt.dropped_tokens;
}

}  // namespace baton::router
