#include "router/request/chat_prompt.h"

#include <optional>
#include <utility>

#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "router/options.h"
#include "router/request/request_check.h"

namespace baton::router {
namespace {

json::Value JsonText(std::string text) {
  json::Value value;
  value.scalar.kind = json::Scalar::Kind::kString;
  value.scalar.text = std::move(text);
  return value;
}

}  // namespace

absl::Status RenderChat(const RouterParts& parts, const chat::Conversation& conversation,
                        v1::GenerateRequest* request) {
  chat::RenderLimits limits;
  limits.max_output_bytes = static_cast<size_t>(parts.options.max_prompt_bytes) + 1;
  absl::StatusOr<chat::RenderedChat> rendered =
      parts.chat.Render(conversation, parts.clock.Now(), limits);
  if (!rendered.ok()) {
    return WithDetails(rendered.status(), "", "messages", /*retry_after=*/std::nullopt);
  }
  request->set_text(std::move(rendered->text));
  // One BOS token only.
  if (rendered->starts_with_bos) request->set_add_special_tokens(false);
  return absl::OkStatus();
}

absl::Status RenderMessages(const RouterParts& parts, v1::GenerateRequest* request) {
  if (!request->has_messages()) return absl::OkStatus();
  chat::Conversation conversation;
  conversation.messages.kind = json::Value::Kind::kArray;
  for (v1::ChatMessage& message : *request->mutable_messages()->mutable_messages()) {
    json::Value& object = conversation.messages.items.emplace_back();
    object.kind = json::Value::Kind::kObject;
    object.keys = {"role", "content"};
    object.items.push_back(JsonText(std::move(*message.mutable_role())));
    object.items.push_back(JsonText(std::move(*message.mutable_content())));
  }
  if (!request->has_add_special_tokens()) request->set_add_special_tokens(false);
  BATON_RETURN_IF_ERROR(RenderChat(parts, conversation, request));
  return CheckText("messages", request->text(), parts.options.max_prompt_bytes);
}

}  // namespace baton::router
