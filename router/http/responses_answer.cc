#include "router/http/responses_answer.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "common/base/splitmix64.h"
#include "router/http/openai_error.h"
#include "router/http/responses_items.h"
#include "router/http/responses_request.h"

namespace baton::router {
namespace {

std::string Quoted(absl::string_view text) {
  const nlohmann::json json = std::string(text);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ResponseUsageJson(const v1::Usage& usage, int reasoning_tokens) {
  nlohmann::ordered_json json = {
      {"input_tokens", usage.prompt_tokens()},
      {"input_tokens_details",
       {{"cached_tokens", usage.cached_prompt_tokens()}, {"cache_write_tokens", 0}}},
      {"output_tokens", usage.generated_tokens()},
      {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens}}},
      {"total_tokens", usage.prompt_tokens() + usage.generated_tokens()}};
  if (usage.dropped_prompt_tokens() > 0) {
    json["input_tokens_details"]["dropped_tokens"] = usage.dropped_prompt_tokens();
  }
  return json.dump();
}

// The codes that the API has for a failed response.
absl::string_view FailureCode(const absl::Status& error) {
  switch (HttpStatusOf(error)) {
    case 400:
      return "invalid_prompt";
    case 429:
      return "rate_limit_exceeded";
    default:
      return "server_error";
  }
}

}  // namespace

ResponsesAnswer::ResponsesAnswer(OpenAiResponse::Options options,
                                 const tokenizer::Tokenizer& tokenizer)
    : options_(std::move(options)),
      shown_(tokenizer, options_.shown_special_tokens),
      id_(Id("resp_", ~uint64_t{0})) {
  if (options_.logprobs) logprobs_.emplace(tokenizer, shown_, /*chat=*/true);
}

std::string ResponsesAnswer::Id(absl::string_view prefix, uint64_t salt) const {
  uint64_t state = options_.parts.call_id_seed + SplitMix64(salt);
  const uint64_t high = NextSplitMix64(&state);
  return absl::StrCat(prefix, absl::Hex(high, absl::kZeroPad16),
                      absl::Hex(NextSplitMix64(&state), absl::kZeroPad16));
}

std::string ResponsesAnswer::PartJson(const Item& item, bool with_text) const {
  const std::string text = Quoted(with_text ? absl::string_view(item.text) : "");
  if (item.kind == Kind::kReasoning) {
    return absl::StrCat(R"({"type":"reasoning_text","text":)", text, "}");
  }
  return absl::StrCat(R"({"type":"output_text","text":)", text, R"(,"annotations":[],"logprobs":[)",
                      item.logprobs, "]}");
}

// As the client has it, if it is a function of a namespace; else null.
const NamespacedName* ResponsesAnswer::NamespacedOf(const Item& item) const {
  const auto found = options_.responses->namespaced.find(item.call.name);
  return found == options_.responses->namespaced.end() ? nullptr : &found->second;
}

std::string ResponsesAnswer::NameJson(const Item& item) const {
  const NamespacedName* named = NamespacedOf(item);
  return Quoted(named == nullptr ? item.call.name : named->name);
}

std::string ResponsesAnswer::ItemJson(const Item& item, absl::string_view status) const {
  const bool starts = status == "in_progress";
  const std::string head = absl::StrCat(R"({"id":")", item.id, R"(","status":")", status, "\",");
  const std::string content =
      absl::StrCat(R"("content":[)", starts ? "" : PartJson(item, /*with_text=*/true), "]}");
  switch (item.kind) {
    case Kind::kReasoning:
      return absl::StrCat(head, R"("type":"reasoning","summary":[],)", content);
    case Kind::kMessage:
      return absl::StrCat(head, R"("type":"message","role":"assistant",)", content);
    case Kind::kCall: {
      const NamespacedName* named = NamespacedOf(item);
      const std::string name_space =
          named == nullptr ? "" : absl::StrCat(R"(,"namespace":)", Quoted(named->name_space));
      return absl::StrCat(head, R"("type":"function_call","call_id":)", Quoted(item.call.id),
                          R"(,"name":)", NameJson(item), name_space, R"(,"arguments":)",
                          Quoted(starts ? "" : item.text), "}");
    }
  }
  return "";
}

std::string ResponsesAnswer::ResponseJson(absl::string_view status, const v1::Usage* usage,
                                          const absl::Status& error) const {
  std::string output;
  for (size_t i = 0; status != "in_progress" && i < items_.size(); ++i) {
    absl::StrAppend(&output, i == 0 ? "" : ",",
                    ItemJson(items_[i], items_[i].is_whole ? "completed" : "incomplete"));
  }
  const std::string failure = error.ok()
                                  ? "null"
                                  : absl::StrCat(R"({"code":")", FailureCode(error),
                                                 R"(","message":)", Quoted(error.message()), "}");
  return absl::StrCat(
      R"({"id":")", id_, R"(","object":"response","created_at":)", options_.created,
      R"(,"status":")", status, R"(","error":)", failure, R"(,"incomplete_details":)",
      status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null", R"(,"model":)",
      Quoted(options_.model), ",\"store\":", options_.responses->keep ? "true" : "false", ",",
      options_.responses->echo, R"(,"output":[)", output, R"(],"usage":)",
      usage == nullptr ? "null" : ResponseUsageJson(*usage, reasoning_tokens_.count()), "}");
}

void ResponsesAnswer::Emit(absl::string_view type, absl::string_view members) {
  if (!streams_) return;
  absl::StrAppend(&events_, "event: ", type, "\ndata: {\"type\":\"", type,
                  "\",\"sequence_number\":", sequence_++, ",", members, "}\n\n");
}

void ResponsesAnswer::EmitOfItem(absl::string_view type, absl::string_view members) {
  const bool has_parts = items_.back().kind != Kind::kCall;
  Emit(type, absl::StrCat("\"item_id\":\"", items_.back().id, "\",\"output_index\":",
                          items_.size() - 1, has_parts ? ",\"content_index\":0," : ",", members));
}

void ResponsesAnswer::Begin() {
  events_.clear();
  if (std::exchange(streams_, true)) return;
  const std::string members =
      absl::StrCat("\"response\":", ResponseJson("in_progress", nullptr, absl::OkStatus()));
  Emit("response.created", members);
  Emit("response.in_progress", members);
}

void ResponsesAnswer::Read(const v1::GenerateResponse& delta) {
  if (logprobs_) logprobs_->Add(delta);
  if (!parts_) parts_.emplace(options_.parts, /*choice=*/0);
  const bool ends = delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  for (chat::AnswerPart& part : parts_->Append(delta.text(), ends)) AddPart(std::move(part));
  if (ends) truncated_ = delta.finish_reason() == v1::FINISH_REASON_LENGTH;
  if (open_) SendText();
}

void ResponsesAnswer::AddPart(chat::AnswerPart part) {
  switch (part.kind) {
    case chat::AnswerPart::Kind::kReasoning:
      return AddText(Kind::kReasoning, part.text);
    case chat::AnswerPart::Kind::kText:
      return AddText(Kind::kMessage, part.text);
    case chat::AnswerPart::Kind::kCall:
      if (open_) Close(/*is_whole=*/true);
      return Open(Kind::kCall, Id("fc_", items_.size()), std::move(part));
    case chat::AnswerPart::Kind::kArguments:
      absl::StrAppend(&items_.back().text, part.text);
      return;
    case chat::AnswerPart::Kind::kCallEnd:
      return Close(part.is_whole);
  }
}

void ResponsesAnswer::AddText(Kind kind, absl::string_view text) {
  if (open_ && items_.back().kind != kind) Close(/*is_whole=*/true);
  if (!open_) Open(kind, Id(kind == Kind::kReasoning ? "rs_" : "msg_", items_.size()));
  absl::StrAppend(&items_.back().text, text);
}

void ResponsesAnswer::Open(Kind kind, std::string id, chat::AnswerPart call) {
  items_.push_back({kind, std::move(id), "", std::move(call), ""});
  open_ = true;
  sent_ = 0;
  const Item& item = items_.back();
  Emit("response.output_item.added", absl::StrCat("\"output_index\":", items_.size() - 1,
                                                  ",\"item\":", ItemJson(item, "in_progress")));
  if (kind == Kind::kCall) return;
  EmitOfItem("response.content_part.added", absl::StrCat("\"part\":", PartJson(item, false)));
}

void ResponsesAnswer::SendText() {
  Item& item = items_.back();
  const bool is_message = item.kind == Kind::kMessage;
  std::string entries;
  if (is_message && logprobs_ && !logprobs_->empty()) {
    // The bytes of special tokens, which are no text.
    entries = absl::StrReplaceAll(logprobs_->TakeEntries(), {{"\"bytes\":null", "\"bytes\":[]"}});
  }
  // A stream has them in its deltas alone, so that it keeps none.
  if (!streams_ && !entries.empty()) {
    absl::StrAppend(&item.logprobs, item.logprobs.empty() ? "" : ",", entries);
  }
  if (sent_ == item.text.size() && entries.empty()) return;
  const std::string delta =
      absl::StrCat("\"delta\":", Quoted(absl::string_view(item.text).substr(sent_)));
  sent_ = item.text.size();
  if (is_message) {
    EmitOfItem("response.output_text.delta", absl::StrCat(delta, ",\"logprobs\":[", entries, "]"));
  } else if (item.kind == Kind::kReasoning) {
    EmitOfItem("response.reasoning_text.delta", delta);
  } else {
    EmitOfItem("response.function_call_arguments.delta", delta);
  }
}

void ResponsesAnswer::Close(bool is_whole) {
  SendText();
  open_ = false;
  items_.back().is_whole = is_whole;
  const Item& item = items_.back();
  const std::string text = absl::StrCat("\"text\":", Quoted(item.text));
  if (item.kind == Kind::kMessage) {
    EmitOfItem("response.output_text.done", absl::StrCat(text, ",\"logprobs\":[]"));
  } else if (item.kind == Kind::kReasoning) {
    EmitOfItem("response.reasoning_text.done", text);
  } else {
    EmitOfItem("response.function_call_arguments.done",
               absl::StrCat("\"name\":", NameJson(item), ",\"arguments\":", Quoted(item.text)));
  }
  if (item.kind != Kind::kCall) {
    EmitOfItem("response.content_part.done", absl::StrCat("\"part\":", PartJson(item, true)));
  }
  Emit("response.output_item.done",
       absl::StrCat("\"output_index\":", items_.size() - 1,
                    ",\"item\":", ItemJson(item, is_whole ? "completed" : "incomplete")));
}

std::string ResponsesAnswer::Finish(const v1::Usage& usage) {
  // An answer without a token has a message without text.
  if (items_.empty()) Open(Kind::kMessage, Id("msg_", 0));
  if (open_) Close(/*is_whole=*/!truncated_);
  std::string response =
      ResponseJson(truncated_ ? "incomplete" : "completed", &usage, absl::OkStatus());
  if (options_.responses->keep) {
    ChatMessages messages;
    for (Item& item : items_) {
      if (item.kind == Kind::kReasoning) messages.AddReasoning(item.text);
      if (item.kind == Kind::kMessage) messages.AddText("assistant", item.text);
      if (item.kind == Kind::kCall) messages.AddCall(item.call.id, item.call.name, item.text);
    }
    options_.responses->keep(id_, response, messages.Take());
  }
  return response;
}

std::string ResponsesAnswer::Chunk(const v1::GenerateResponse& delta) {
  Begin();
  Read(delta);
  return std::move(events_);
}

std::string ResponsesAnswer::StreamEnd(const v1::Usage& usage) {
  Begin();
  const std::string response = Finish(usage);
  Emit(truncated_ ? "response.incomplete" : "response.completed",
       absl::StrCat("\"response\":", response));
  return std::move(events_);
}

std::string ResponsesAnswer::StreamError(const absl::Status& error) {
  Begin();
  if (open_) Close(/*is_whole=*/false);
  const absl::Status named = WithResponsesField(error);
  const nlohmann::json body = nlohmann::json::parse(ErrorJson(named, "input"))["error"];
  Emit("error", absl::StrCat("\"code\":", body["code"].dump(), ",\"message\":",
                             body["message"].dump(), ",\"param\":", body["param"].dump()));
  Emit("response.failed", absl::StrCat("\"response\":", ResponseJson("failed", nullptr, named)));
  return std::move(events_);
}

void ResponsesAnswer::Add(const v1::GenerateResponse& delta) { Read(delta); }

std::string ResponsesAnswer::Whole(const v1::Usage& usage) { return Finish(usage); }

HttpResponse ResponsesAnswer::Error(const absl::Status& error) const {
  return ErrorResponse(WithResponsesField(error), "input");
}

}  // namespace baton::router
