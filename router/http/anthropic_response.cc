#include "router/http/anthropic_response.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/json/scanner.h"
#include "router/http/anthropic_error.h"

namespace baton::router {
namespace {

// Blocks of thinking have a signature, and some clients send a block back only if it is not empty.
// Baton reads none.
constexpr absl::string_view kSignature = "\"baton\"";

// A text as JSON.
std::string QuotedText(absl::string_view text) {
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// `members`: those after the type, which is the event's name.
void AppendNamedEvent(absl::string_view name, absl::string_view members, std::string* events) {
  absl::StrAppend(events, "event: ", name, "\ndata: {\"type\":\"", name, "\"", members, "}\n\n");
}

// Anthropic counts the tokens that were found in a cache apart from the others of the prompt.
std::string UsageMembers(const v1::Usage& usage, int output_tokens) {
  return absl::StrCat("{\"input_tokens\":", usage.prompt_tokens() - usage.cached_prompt_tokens(),
                      ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":",
                      usage.cached_prompt_tokens(), ",\"output_tokens\":", output_tokens, "}");
}

// A block of a call; `input` is JSON.
std::string CallBlock(const chat::AnswerPart& call, absl::string_view input) {
  return absl::StrCat("{\"type\":\"tool_use\",\"id\":", QuotedText(call.id),
                      ",\"name\":", QuotedText(call.name), ",\"input\":", input, "}");
}

std::string TextBlock(absl::string_view text) {
  return absl::StrCat("{\"type\":\"text\",\"text\":", QuotedText(text), "}");
}

std::string ThinkingBlock(absl::string_view text, absl::string_view signature) {
  return absl::StrCat("{\"type\":\"thinking\",\"thinking\":", QuotedText(text),
                      ",\"signature\":", signature, "}");
}

}  // namespace

AnthropicResponse::Kind AnthropicResponse::KindOf(const chat::AnswerPart& part) {
  switch (part.kind) {
    case chat::AnswerPart::Kind::kReasoning:
      return Kind::kThinking;
    case chat::AnswerPart::Kind::kText:
      return Kind::kText;
    default:
      return Kind::kCall;
  }
}

std::vector<chat::AnswerPart> AnthropicResponse::Take(absl::string_view text, bool ends) {
  if (!parts_) parts_.emplace(options_.parts, /*choice=*/0);
  return parts_->Append(text, ends);
}

void AnthropicResponse::KeepEnd(const v1::GenerateResponse& delta) {
  if (delta.finish_reason() == v1::FINISH_REASON_UNSPECIFIED) return;
  finish_reason_ = delta.finish_reason();
  matched_stop_ = delta.matched_stop();
}

std::string AnthropicResponse::StopMembers() const {
  const char* reason = "null";
  std::string stop = "null";
  if (finish_reason_ == v1::FINISH_REASON_LENGTH) {
    reason = "\"max_tokens\"";
  } else if (!matched_stop_.empty()) {
    reason = "\"stop_sequence\"";
    stop = QuotedText(matched_stop_);
  } else if (finish_reason_ == v1::FINISH_REASON_STOP) {
    reason = parts_ && parts_->calls() > 0 ? "\"tool_use\"" : "\"end_turn\"";
  }
  return absl::StrCat("\"stop_reason\":", reason, ",\"stop_sequence\":", stop);
}

std::string AnthropicResponse::Message(absl::string_view content, const v1::Usage& usage) const {
  return absl::StrCat("{\"id\":", QuotedText(absl::StrCat("msg_", options_.request_id)),
                      ",\"type\":\"message\",\"role\":\"assistant\",\"model\":",
                      QuotedText(options_.model), ",\"content\":[", content, "],", StopMembers(),
                      ",\"usage\":", UsageMembers(usage, usage.generated_tokens()), "}");
}

void AnthropicResponse::Begin(const v1::Usage& usage, std::string* events) {
  if (std::exchange(begun_, true)) return;
  // What is generated is counted at the end.
  v1::Usage prompt = usage;
  prompt.set_generated_tokens(0);
  AppendNamedEvent("message_start", absl::StrCat(",\"message\":", Message("", prompt)), events);
}

void AnthropicResponse::CloseBlock(std::string* events) {
  if (open_ == Kind::kNone) return;
  const std::string index = absl::StrCat(",\"index\":", index_);
  if (open_ == Kind::kThinking) {
    AppendNamedEvent("content_block_delta",
                     absl::StrCat(index, ",\"delta\":{\"type\":\"signature_delta\",\"signature\":",
                                  kSignature, "}"),
                     events);
  }
  AppendNamedEvent("content_block_stop", index, events);
  open_ = Kind::kNone;
  ++index_;
}

void AnthropicResponse::Write(const chat::AnswerPart& part, std::string* events) {
  if (part.kind == chat::AnswerPart::Kind::kCallEnd) return CloseBlock(events);
  const bool is_new = part.kind == chat::AnswerPart::Kind::kCall || KindOf(part) != open_;
  if (is_new) CloseBlock(events);
  const std::string index = absl::StrCat(",\"index\":", index_);
  if (is_new) {
    open_ = KindOf(part);
    const std::string empty = open_ == Kind::kCall   ? CallBlock(part, "{}")
                              : open_ == Kind::kText ? TextBlock("")
                                                     : ThinkingBlock("", "\"\"");
    AppendNamedEvent("content_block_start", absl::StrCat(index, ",\"content_block\":", empty),
                     events);
  }
  if (part.kind == chat::AnswerPart::Kind::kCall) return;
  const char* const delta = open_ == Kind::kCall
                                ? "{\"type\":\"input_json_delta\",\"partial_json\":"
                            : open_ == Kind::kText ? "{\"type\":\"text_delta\",\"text\":"
                                                   : "{\"type\":\"thinking_delta\",\"thinking\":";
  AppendNamedEvent("content_block_delta",
                   absl::StrCat(index, ",\"delta\":", delta, QuotedText(part.text), "}"), events);
}

std::string AnthropicResponse::Chunk(const v1::GenerateResponse& delta) {
  std::string events;
  Begin(delta.usage(), &events);
  KeepEnd(delta);
  const bool ends = delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  for (const chat::AnswerPart& part : Take(delta.text(), ends)) Write(part, &events);
  if (ends) CloseBlock(&events);
  return events;
}

std::string AnthropicResponse::StreamEnd(const v1::Usage& usage) {
  std::string events;
  Begin(usage, &events);
  CloseBlock(&events);
  AppendNamedEvent("message_delta",
                   absl::StrCat(",\"delta\":{", StopMembers(),
                                "},\"usage\":", UsageMembers(usage, usage.generated_tokens())),
                   &events);
  AppendNamedEvent("message_stop", "", &events);
  return events;
}

std::string AnthropicResponse::StreamError(const absl::Status& error) {
  return absl::StrCat("event: error\ndata: ", AnthropicErrorJson(error, options_.request_id),
                      "\n\n");
}

void AnthropicResponse::Add(const v1::GenerateResponse& delta) {
  KeepEnd(delta);
  text_ += delta.text();
}

std::string AnthropicResponse::Whole(const v1::Usage& usage) {
  using enum chat::AnswerPart::Kind;
  std::string content;
  chat::AnswerPart call{};
  std::string input;
  for (const chat::AnswerPart& part : Take(std::exchange(text_, {}), /*ends=*/true)) {
    if (part.kind == kCall) call = part;
    if (part.kind == kArguments) input = part.text;  // all of them
    if (part.kind == kCall || part.kind == kArguments) continue;
    // An input is an object, also of a call that is not whole.
    if (part.kind == kCallEnd && !part.is_whole) input = json::WholeMembers(input);
    absl::StrAppend(&content, content.empty() ? "" : ",",
                    part.kind == kCallEnd ? CallBlock(call, std::exchange(input, ""))
                    : part.kind == kText  ? TextBlock(part.text)
                                          : ThinkingBlock(part.text, kSignature));
  }
  return Message(content, usage);
}

HttpResponse AnthropicResponse::Error(const absl::Status& error) const {
  return AnthropicErrorResponse(error, options_.request_id);
}

}  // namespace baton::router
