#include "router/http/openai_response.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "router/http/openai_error.h"

namespace baton::router {
namespace {

// Keys in the order in which they are set, as OpenAI's documentation shows them.
using OrderedJson = nlohmann::ordered_json;

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Event(absl::string_view json) { return absl::StrCat("data: ", json, "\n\n"); }

// The text of `object`, which is not empty, with more members behind its own. Their values are
// JSON.
std::string Extended(const OrderedJson& object,
                     absl::Span<const std::pair<absl::string_view, std::string>> members) {
  std::string text = Dump(object);
  text.pop_back();
  for (const auto& [name, value] : members) absl::StrAppend(&text, ",\"", name, "\":", value);
  text.push_back('}');
  return text;
}

OrderedJson UsageJson(const v1::Usage& usage) {
  OrderedJson json = {{"prompt_tokens", usage.prompt_tokens()},
                      {"completion_tokens", usage.generated_tokens()},
                      {"total_tokens", usage.prompt_tokens() + usage.generated_tokens()},
                      {"prompt_tokens_details", {{"cached_tokens", usage.cached_prompt_tokens()}}}};
  if (usage.has_cache_miss()) {
    const v1::CacheMiss& miss = usage.cache_miss();
    json["cache_miss"] = {
        {"cause", absl::AsciiStrToLower(absl::StripPrefix(v1::CacheMissCause_Name(miss.cause()),
                                                          "CACHE_MISS_CAUSE_"))},
        {"first_different_token", miss.first_different_token()},
        {"text", miss.text()},
        {"earlier_text", miss.earlier_text()},
        {"lost_tokens", miss.lost_tokens()},
        {"lost_ms", miss.lost_ms()},
        {"earlier_request_id", miss.earlier_request_id()}};
  }
  if (usage.dropped_prompt_tokens() > 0) {
    json["prompt_tokens_details"]["dropped_tokens"] = usage.dropped_prompt_tokens();
  }
  return json;
}

OrderedJson FinishJson(v1::FinishReason reason, bool with_calls) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return with_calls ? "tool_calls" : "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return nullptr;
  }
}

// The calls of a whole answer.
OrderedJson CallsJson(const std::vector<chat::ToolCall>& calls) {
  OrderedJson json = OrderedJson::array();
  for (const chat::ToolCall& call : calls) {
    json.push_back({{"id", call.id},
                    {"type", "function"},
                    {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  return json;
}

// What a chunk of a stream adds to a message: an object without members if it adds nothing.
// `index`: of the last call before it; left at the last one in it.
OrderedJson MessageDelta(const std::vector<chat::AnswerPart>& parts, int* index) {
  using enum chat::AnswerPart::Kind;
  chat::JoinedAnswer joined;
  OrderedJson calls = OrderedJson::array();
  bool is_new = true;  // the next piece of arguments is the first of its call in this chunk
  for (const chat::AnswerPart& part : parts) {
    if (part.kind == kReasoning || part.kind == kText) joined.Add(part);
    if (part.kind == kCall) {
      calls.push_back({{"index", ++*index},
                       {"id", part.id},
                       {"type", "function"},
                       {"function", {{"name", part.name}, {"arguments", ""}}}});
      is_new = false;
    }
    if (part.kind != kArguments) continue;
    if (std::exchange(is_new, false)) {
      calls.push_back({{"index", *index}, {"function", {{"arguments", ""}}}});
    }
    std::string& arguments =
        calls.back()["function"]["arguments"].get_ref<OrderedJson::string_t&>();
    arguments += part.text;
  }
  OrderedJson delta = OrderedJson::object();
  if (!joined.reasoning.empty()) delta["reasoning_content"] = std::move(joined.reasoning);
  if (!joined.text.empty()) delta["content"] = std::move(joined.text);
  if (!calls.empty()) delta["tool_calls"] = std::move(calls);
  return delta;
}

}  // namespace

std::string OpenAiResponse::UsageText(const v1::Usage& usage) const {
  OrderedJson json = UsageJson(usage);
  if (options_.parts.reasoning != chat::ReasoningFormat::kNone) {
    json["completion_tokens_details"]["reasoning_tokens"] = reasoning_tokens_.count();
  }
  if (usage.draft_tokens() > 0) {
    OrderedJson& details = json["completion_tokens_details"];
    details["accepted_prediction_tokens"] = usage.accepted_draft_tokens();
    details["rejected_prediction_tokens"] = usage.draft_tokens() - usage.accepted_draft_tokens();
  }
  return Dump(json);
}

const EchoedPrompt* OpenAiResponse::EchoOf(int choice) const {
  const size_t prompt = choice / options_.choices_per_prompt;
  return prompt < echo_.size() ? &echo_[prompt] : nullptr;
}

template <class Object>
Object OpenAiResponse::Head(const char* object) const {
  Object head = {{"id", absl::StrCat(options_.chat ? "chatcmpl-" : "cmpl-", options_.request_id)},
                 {"object", object},
                 {"created", options_.created},
                 {"model", options_.model}};
  if (options_.fingerprint != 0) {
    head["system_fingerprint"] =
        absl::StrCat("fp_", absl::Hex(options_.fingerprint, absl::kZeroPad16));
  }
  return head;
}

void OpenAiResponse::AddLogprobs(const v1::GenerateResponse& delta, ChoiceState& state) {
  if (!options_.logprobs) return;
  if (!state.logprobs) {
    state.logprobs.emplace(tokenizer_, shown_, options_.chat);
    if (const EchoedPrompt* echo = EchoOf(delta.choice())) {
      state.logprobs->AddPrompt(*echo,
                                prompt_logprobs_[delta.choice() / options_.choices_per_prompt]);
    }
  }
  state.logprobs->Add(delta);
}

// They come once for each prompt, with whichever choice is first.
void OpenAiResponse::KeepPromptLogprobs(const v1::GenerateResponse& delta) {
  if (delta.prompt_logprobs().empty()) return;
  prompt_logprobs_[delta.choice() / options_.choices_per_prompt] = delta.prompt_logprobs();
}

AnswerParts& OpenAiResponse::PartsOf(int choice, ChoiceState& state) const {
  if (!state.parts) state.parts.emplace(options_.parts, choice);
  return *state.parts;
}

std::string OpenAiResponse::Chunk(const v1::GenerateResponse& delta) {
  const OrderedJson chunk =
      Head<OrderedJson>(options_.chat ? "chat.completion.chunk" : "text_completion");
  OrderedJson choice = {{"index", delta.choice()}};
  ChoiceState& state = choices_[delta.choice()];
  const bool starts = !std::exchange(state.begun, true);
  const bool ends = delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  KeepPromptLogprobs(delta);
  AddLogprobs(delta, state);
  const bool has_logprobs = state.logprobs && !state.logprobs->empty();
  const bool must_come = starts || ends || has_logprobs || options_.continuous_usage;
  if (options_.chat) {
    AnswerParts& parts = PartsOf(delta.choice(), state);
    int call_index = parts.calls() - 1;
    OrderedJson added = MessageDelta(parts.Append(delta.text(), ends), &call_index);
    if (added.empty() && !must_come) return "";
    if (added.empty()) added["content"] = "";
    OrderedJson content = OrderedJson::object();
    if (starts) content["role"] = "assistant";
    content.update(added);
    choice["delta"] = std::move(content);
  } else {
    const EchoedPrompt* echo = starts ? EchoOf(delta.choice()) : nullptr;
    if (delta.text().empty() && !must_come) return "";
    choice["text"] = (echo != nullptr ? echo->text : "") + delta.text();
  }
  const std::string whole_choice = Extended(
      choice,
      {{"logprobs", has_logprobs ? state.logprobs->Take() : "null"},
       {"finish_reason", Dump(FinishJson(delta.finish_reason(), FinishesWithCalls(state)))}});
  std::vector<std::pair<absl::string_view, std::string>> members = {
      {"choices", absl::StrCat("[", whole_choice, "]")}};
  if (options_.continuous_usage) {
    members.emplace_back("usage", UsageText(delta.usage()));
  } else if (options_.include_usage) {
    members.emplace_back("usage", "null");
  }
  return Event(Extended(chunk, members));
}

std::string OpenAiResponse::StreamEnd(const v1::Usage& usage) {
  std::string end;
  if (options_.include_usage) {
    const OrderedJson chunk =
        Head<OrderedJson>(options_.chat ? "chat.completion.chunk" : "text_completion");
    end = Event(Extended(chunk, {{"choices", "[]"}, {"usage", UsageText(usage)}}));
  }
  return absl::StrCat(end, "data: [DONE]\n\n");
}

std::string OpenAiResponse::StreamError(const absl::Status& error) {
  return Event(ErrorJson(error, prompt_field()));
}

HttpResponse OpenAiResponse::Error(const absl::Status& error) const {
  return ErrorResponse(error, prompt_field());
}

void OpenAiResponse::Add(const v1::GenerateResponse& delta) {
  ChoiceState& state = choices_[delta.choice()];
  KeepPromptLogprobs(delta);
  AddLogprobs(delta, state);
  state.text += delta.text();
  if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    state.finish_reason = delta.finish_reason();
  }
}

std::string OpenAiResponse::Whole(const v1::Usage& usage) {
  std::string choices;
  for (auto& [index, state] : choices_) {
    OrderedJson choice = {{"index", index}};
    if (options_.chat) {
      chat::JoinedAnswer content;
      for (const chat::AnswerPart& part : PartsOf(index, state).Append(state.text, /*ends=*/true)) {
        content.Add(part);
      }
      OrderedJson message = {
          {"role", "assistant"}, {"content", content.text}, {"refusal", nullptr}};
      const bool is_text = content.calls.empty() && content.reasoning.empty();
      if (content.text.empty() && !is_text) message["content"] = nullptr;
      if (!content.reasoning.empty()) message["reasoning_content"] = content.reasoning;
      if (!content.calls.empty()) message["tool_calls"] = CallsJson(content.calls);
      choice["message"] = std::move(message);
    } else {
      const EchoedPrompt* echo = EchoOf(index);
      choice["text"] = (echo != nullptr ? echo->text : "") + state.text;
    }
    absl::StrAppend(
        &choices, choices.empty() ? "" : ",",
        Extended(choice, {{"logprobs", state.logprobs ? state.logprobs->Take() : "null"},
                          {"finish_reason",
                           Dump(FinishJson(state.finish_reason, FinishesWithCalls(state)))}}));
  }
  return Extended(Head<OrderedJson>(options_.chat ? "chat.completion" : "text_completion"),
                  {{"choices", absl::StrCat("[", choices, "]")}, {"usage", UsageText(usage)}});
}

}  // namespace baton::router
