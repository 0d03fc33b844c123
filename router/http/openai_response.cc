#include "router/http/openai_response.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

// Keys in the order in which they are set, as OpenAI's documentation shows them.
using OrderedJson = nlohmann::ordered_json;

constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD: part of a character

std::string Dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Event(const OrderedJson& json) { return absl::StrCat("data: ", Dump(json), "\n\n"); }

OrderedJson UsageJson(const v1::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.generated_tokens()},
          {"total_tokens", usage.prompt_tokens() + usage.generated_tokens()},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_prompt_tokens()}}}};
}

OrderedJson FinishJson(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    default:
      return nullptr;
  }
}

int64_t Characters(absl::string_view text) {
  int64_t count = 0;
  for (const char c : text) count += (c & 0xC0) != 0x80;
  return count;
}

// Null for a token that is no whole text: its bytes are not known here.
OrderedJson BytesJson(const std::string& text) {
  if (absl::StrContains(text, kReplacement)) return nullptr;
  OrderedJson bytes = OrderedJson::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

std::string OpenAiResponse::TokenText(int32_t id) const {
  const absl::StatusOr<std::string> text = tokenizer_.Decode({id}, /*skip_special_tokens=*/false);
  return text.ok() ? *text : std::string();
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

template <class Object>
Object OpenAiResponse::Logprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& tokens,
                                int choice) {
  if (options_.chat) {
    Object content = Object::array();
    for (const v1::TokenLogprobs& token : tokens) {
      const std::string text = TokenText(token.token_id());
      Object top = Object::array();
      for (const v1::TokenLogprob& one : token.top()) {
        const std::string other = TokenText(one.token_id());
        top.push_back({{"token", other}, {"logprob", one.logprob()}, {"bytes", BytesJson(other)}});
      }
      content.push_back({{"token", text},
                         {"logprob", token.logprob()},
                         {"bytes", BytesJson(text)},
                         {"top_logprobs", std::move(top)}});
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  Object texts = Object::array(), logprobs = Object::array(), tops = Object::array();
  Object offsets = Object::array();
  int64_t& offset = choices_[choice].text_offset;
  for (const v1::TokenLogprobs& token : tokens) {
    const std::string text = TokenText(token.token_id());
    Object top = Object::object();
    for (const v1::TokenLogprob& one : token.top()) top[TokenText(one.token_id())] = one.logprob();
    texts.push_back(text);
    logprobs.push_back(token.logprob());
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += Characters(text);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

std::string OpenAiResponse::Chunk(const v1::GenerateResponse& delta) {
  OrderedJson chunk =
      Head<OrderedJson>(options_.chat ? "chat.completion.chunk" : "text_completion");
  OrderedJson choice = {{"index", delta.choice()}};
  if (options_.chat) {
    OrderedJson content = OrderedJson::object();
    if (!std::exchange(choices_[delta.choice()].begun, true)) content["role"] = "assistant";
    content["content"] = delta.text();
    choice["delta"] = std::move(content);
  } else {
    choice["text"] = delta.text();
  }
  choice["logprobs"] = options_.logprobs && !delta.logprobs().empty()
                           ? Logprobs<OrderedJson>(delta.logprobs(), delta.choice())
                           : OrderedJson(nullptr);
  choice["finish_reason"] = FinishJson(delta.finish_reason());
  chunk["choices"] = OrderedJson::array({std::move(choice)});
  if (options_.continuous_usage) {
    chunk["usage"] = UsageJson(delta.usage());
  } else if (options_.include_usage) {
    chunk["usage"] = nullptr;
  }
  return Event(chunk);
}

std::string OpenAiResponse::StreamEnd(const v1::Usage& usage) const {
  std::string end;
  if (options_.include_usage) {
    OrderedJson chunk =
        Head<OrderedJson>(options_.chat ? "chat.completion.chunk" : "text_completion");
    chunk["choices"] = OrderedJson::array();
    chunk["usage"] = UsageJson(usage);
    end = Event(chunk);
  }
  return absl::StrCat(end, "data: [DONE]\n\n");
}

std::string OpenAiResponse::Whole(const v1::GenerateOnceResponse& answer) {
  OrderedJson whole = Head<OrderedJson>(options_.chat ? "chat.completion" : "text_completion");
  OrderedJson choices = OrderedJson::array();
  for (int i = 0; i < answer.choices_size(); ++i) {
    const v1::Choice& one = answer.choices(i);
    OrderedJson choice = {{"index", i}};
    if (options_.chat) {
      choice["message"] = {{"role", "assistant"}, {"content", one.text()}, {"refusal", nullptr}};
    } else {
      choice["text"] = one.text();
    }
    choice["logprobs"] =
        options_.logprobs ? Logprobs<OrderedJson>(one.logprobs(), i) : OrderedJson(nullptr);
    choice["finish_reason"] = FinishJson(one.finish_reason());
    choices.push_back(std::move(choice));
  }
  whole["choices"] = std::move(choices);
  whole["usage"] = UsageJson(answer.usage());
  return Dump(whole);
}

}  // namespace baton::router
