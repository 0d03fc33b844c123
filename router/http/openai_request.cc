#include "router/http/openai_request.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "router/http/body_reader.h"
#include "router/http/json_readers.h"
#include "router/http/openai_hints.h"
#include "router/http/openai_response_format.h"
#include "router/http/reasoning_effort.h"

namespace baton::router {
namespace {

struct Field {
  absl::string_view name;
  absl::Status (*read)(absl::string_view name, const Value& value, OpenAiRequest& request);
  // Instead of `read`, of a field that is large: takes the value.
  absl::Status (*take)(absl::string_view name, Value value, OpenAiRequest& request) = nullptr;
};

absl::Status Read(const Field& field, Value value, OpenAiRequest& request) {
  return field.take != nullptr ? field.take(field.name, std::move(value), request)
                               : field.read(field.name, value, request);
}

// --- Fields that both endpoints have.

absl::Status ReadModel(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(*request.generate.mutable_model(), Text(name, value));
  return absl::OkStatus();
}

absl::Status ReadStream(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.stream, Bool(name, value));
  return absl::OkStatus();
}

absl::Status ReadStreamOptions(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsObject(value)) return WrongType(name, "an object");
  for (size_t i = 0; i < value.keys.size(); ++i) {
    const std::string field = absl::StrCat(name, ".", json::Printable(value.keys[i]));
    if (value.items[i].is_null()) continue;
    BATON_ASSIGN_OR_RETURN(const bool on, Bool(field, value.items[i]));
    if (value.keys[i] == "include_usage") {
      request.include_usage = on;
    } else if (value.keys[i] == "continuous_usage_stats") {
      request.continuous_usage = on;
    } else if (value.keys[i] == "include_obfuscation") {
      if (on) request.ignored.push_back(field);  // chunks are not padded
    } else {
      return InvalidField("UNKNOWN_FIELD", field, "unknown field");
    }
  }
  return absl::OkStatus();
}

template <void (v1::SamplingParams::*kSet)(float)>
absl::Status ReadSamplingNumber(absl::string_view name, const Value& value,
                                OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const float number, Number(name, value));
  (request.generate.mutable_sampling()->*kSet)(number);
  return absl::OkStatus();
}

absl::Status ReadTopK(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const int32_t top_k, Int32(name, value));
  request.generate.mutable_sampling()->set_top_k(top_k);
  return absl::OkStatus();
}

// Negative seeds are seeds, too: they are taken modulo 2^64.
absl::Status ReadSeed(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const int64_t seed, Integer(name, value));
  request.generate.mutable_sampling()->set_seed(static_cast<uint64_t>(seed));
  return absl::OkStatus();
}

// A token id must be spelled as JSON spells the number, so that two keys are two tokens: the parser
// has refused a key that appears twice.
bool ParseTokenKey(absl::string_view key, int32_t* id) {
  return absl::SimpleAtoi(key, id) && absl::StrCat(*id) == key;
}

absl::Status ReadLogitBias(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsObject(value)) return WrongType(name, "an object from token ids to numbers");
  BATON_RETURN_IF_ERROR(CheckLogitBiasCount(value.keys.size()));
  for (size_t i = 0; i < value.keys.size(); ++i) {
    const std::string field = absl::StrCat(name, "[", json::Quoted(value.keys[i]), "]");
    int32_t id = 0;
    if (!ParseTokenKey(value.keys[i], &id)) {
      return WrongType(field, "a token id as key, in digits alone and without leading zeros,");
    }
    if (value.items[i].is_null()) continue;
    BATON_ASSIGN_OR_RETURN(const float bias, Number(field, value.items[i]));
    (*request.generate.mutable_sampling()->mutable_logit_bias())[id] = bias;
  }
  return absl::OkStatus();
}

absl::Status ReadStop(absl::string_view name, const Value& value, OpenAiRequest& request) {
  v1::StopConditions& stop = *request.generate.mutable_stop();
  if (!IsArray(value)) {
    BATON_ASSIGN_OR_RETURN(*stop.add_stop(), Text(name, value));
    return absl::OkStatus();
  }
  for (const Value& item : value.items) {
    BATON_ASSIGN_OR_RETURN(*stop.add_stop(), Text(name, item));
  }
  return absl::OkStatus();
}

template <void (v1::StopConditions::*kSet)(int32_t)>
absl::Status ReadTokenLimit(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const int32_t limit, Int32(name, value));
  (request.generate.mutable_stop()->*kSet)(limit);
  return absl::OkStatus();
}

absl::Status ReadStopTokenIds(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsArray(value)) return WrongType(name, "an array of token ids");
  for (const Value& item : value.items) {
    BATON_ASSIGN_OR_RETURN(const int32_t id, Int32(name, item));
    request.generate.mutable_stop()->add_stop_token_ids(id);
  }
  return absl::OkStatus();
}

absl::Status ReadIgnoreEos(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const bool ignore, Bool(name, value));
  request.generate.mutable_stop()->set_ignore_eos(ignore);
  return absl::OkStatus();
}

absl::Status ReadN(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const int32_t n, Int32(name, value));
  request.generate.set_n(n);
  return absl::OkStatus();
}

// Without API keys, `user` is the tenant, so that users share fairly. With keys, it is ignored.
absl::Status ReadUser(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(*request.generate.mutable_tenant(), Text(name, value));
  return absl::OkStatus();
}

absl::Status ReadCacheSalt(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(*request.generate.mutable_cache_salt(), Text(name, value));
  return absl::OkStatus();
}

absl::Status ReadRetention(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsObject(value)) return WrongType(name, "an object");
  v1::Retention& retention = *request.generate.mutable_retention();
  for (size_t i = 0; i < value.keys.size(); ++i) {
    const std::string& key = value.keys[i];
    const std::string field = absl::StrCat(name, ".", json::Printable(key));
    if (value.items[i].is_null()) continue;
    if (key == "ttl_ms") {
      BATON_ASSIGN_OR_RETURN(const int64_t ttl_ms, Integer(field, value.items[i]));
      retention.set_ttl_ms(ttl_ms);
    } else if (key == "priority") {
      BATON_ASSIGN_OR_RETURN(const int32_t priority, Int32(field, value.items[i]));
      retention.set_priority(priority);
    } else if (key == "until_token") {
      BATON_ASSIGN_OR_RETURN(const int32_t until_token, Int32(field, value.items[i]));
      retention.set_until_token(until_token);
    } else {
      return Unsupported(field, "only until_token, priority and ttl_ms are supported");
    }
  }
  return absl::OkStatus();
}

template <void (v1::GenerateRequest::*kSet)(bool)>
absl::Status ReadSwitch(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const bool on, Bool(name, value));
  (request.generate.*kSet)(on);
  return absl::OkStatus();
}

// Reads a field with one value that means nothing new: that value is allowed.
template <bool kAllowed>
absl::Status ReadOnlyBool(absl::string_view name, const Value& value, OpenAiRequest&) {
  BATON_ASSIGN_OR_RETURN(const bool given, Bool(name, value));
  if (given == kAllowed) return absl::OkStatus();
  return Unsupported(name, absl::StrCat("only ", kAllowed ? "true" : "false", " is supported"));
}

// An extension: GenerateRequest.truncation.
absl::Status ReadTruncation(absl::string_view name, const Value& value, OpenAiRequest& request) {
  if (!IsObject(value)) return WrongType(name, "an object");
  v1::Truncation& truncation = *request.generate.mutable_truncation();
  for (size_t i = 0; i < value.keys.size(); ++i) {
    const std::string field = absl::StrCat(name, ".", json::Printable(value.keys[i]));
    if (value.items[i].is_null()) continue;
    if (value.keys[i] == "keep_first") {
      BATON_ASSIGN_OR_RETURN(const int32_t tokens, Int32(field, value.items[i]));
      truncation.set_keep_first(tokens);
    } else if (value.keys[i] == "keep_last") {
      BATON_ASSIGN_OR_RETURN(const int32_t tokens, Int32(field, value.items[i]));
      truncation.set_keep_last(tokens);
    } else if (value.keys[i] == "retention_ratio") {
      BATON_ASSIGN_OR_RETURN(const float ratio, Number(field, value.items[i]));
      truncation.set_retention_ratio(ratio);
    } else {
      return InvalidField("UNKNOWN_FIELD", field, "unknown field");
    }
  }
  return absl::OkStatus();
}

absl::Status Refuse(absl::string_view name, const Value&, OpenAiRequest&) {
  return Unsupported(name, "this server does not support the field");
}

constexpr Field kCommonFields[] = {
    {"model", ReadModel},
    {"stream", ReadStream},
    {"stream_options", ReadStreamOptions},
    {"temperature", ReadSamplingNumber<&v1::SamplingParams::set_temperature>},
    {"top_p", ReadSamplingNumber<&v1::SamplingParams::set_top_p>},
    {"top_k", ReadTopK},
    {"min_p", ReadSamplingNumber<&v1::SamplingParams::set_min_p>},
    {"repetition_penalty", ReadSamplingNumber<&v1::SamplingParams::set_repetition_penalty>},
    {"frequency_penalty", ReadSamplingNumber<&v1::SamplingParams::set_frequency_penalty>},
    {"presence_penalty", ReadSamplingNumber<&v1::SamplingParams::set_presence_penalty>},
    {"seed", ReadSeed},
    {"logit_bias", ReadLogitBias},
    {"stop", ReadStop},
    {"stop_token_ids", ReadStopTokenIds},
    {"ignore_eos", ReadIgnoreEos},
    {"max_tokens", ReadTokenLimit<&v1::StopConditions::set_max_tokens>},
    {"min_tokens", ReadTokenLimit<&v1::StopConditions::set_min_tokens>},
    {"n", ReadN},
    {"user", ReadUser},
    {"cache_salt", ReadCacheSalt},
    {"retention", ReadRetention},
    {"explain_cache", ReadSwitch<&v1::GenerateRequest::set_explain_cache>},
    {"speculation", ReadSwitch<&v1::GenerateRequest::set_speculation>},
    {"add_special_tokens", ReadSwitch<&v1::GenerateRequest::set_add_special_tokens>},
    {"split_special_tokens", ReadSwitch<&v1::GenerateRequest::set_split_special_tokens>},
    {"skip_special_tokens", ReadOnlyBool<true>},
    {"include_stop_str_in_output", ReadOnlyBool<false>},
    {"response_format", ReadResponseFormat},
    {"structured_outputs", ReadStructuredOutputs},
    {"guided_json", ReadGuidedDecoding},
    {"guided_regex", ReadGuidedDecoding},
    {"guided_choice", ReadGuidedDecoding},
    {"any_whitespace", ReadAnyWhitespace},
    {"truncation", ReadTruncation},
};

// --- Completions.

// BodyReader has read the prompt.
absl::Status ReadPrompt(absl::string_view, const Value&, OpenAiRequest&) {
  return absl::OkStatus();
}

absl::Status ReadEcho(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.echo, Bool(name, value));
  return absl::OkStatus();
}

absl::Status ReadLogprobs(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(const int32_t count, Int32(name, value));
  request.generate.set_logprobs(count);
  return absl::OkStatus();
}

absl::Status ReadBestOf(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.best_of, Int32(name, value));
  return absl::OkStatus();
}

absl::Status ReadSuffix(absl::string_view name, const Value& value, OpenAiRequest&) {
  BATON_ASSIGN_OR_RETURN(const std::string suffix, Text(name, value));
  if (suffix.empty()) return absl::OkStatus();
  return Unsupported(name, "text is not inserted before a suffix");
}

constexpr Field kCompletionFields[] = {
    {"prompt", ReadPrompt}, {"logprobs", ReadLogprobs}, {"best_of", ReadBestOf},
    {"suffix", ReadSuffix}, {"echo", ReadEcho},
};

// --- Chat.

absl::Status ReadWantsLogprobs(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.wants_logprobs, Bool(name, value));
  return absl::OkStatus();
}

absl::Status ReadTopLogprobs(absl::string_view name, const Value& value, OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.top_logprobs, Int32(name, value));
  return absl::OkStatus();
}

absl::Status ReadMaxCompletionTokens(absl::string_view name, const Value& value,
                                     OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.max_completion_tokens, Int32(name, value));
  return absl::OkStatus();
}

absl::Status ReadModalities(absl::string_view name, const Value& value, OpenAiRequest&) {
  if (IsArray(value) && value.items.size() == 1 &&
      IsScalar(value.items[0], Scalar::Kind::kString) && value.items[0].scalar.text == "text") {
    return absl::OkStatus();
  }
  return Unsupported(name, "only [\"text\"] is supported");
}

absl::Status ReadParallelToolCalls(absl::string_view name, const Value& value,
                                   OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.parallel_tool_calls, Bool(name, value));
  return absl::OkStatus();
}

absl::Status ReadTemplateVariables(absl::string_view name, const Value& value,
                                   OpenAiRequest& request) {
  if (!IsObject(value)) return WrongType(name, "an object");
  request.conversation.variables = value;
  return absl::OkStatus();
}

absl::Status ReadGenerationPrompt(absl::string_view name, const Value& value,
                                  OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.conversation.add_generation_prompt, Bool(name, value));
  return absl::OkStatus();
}

absl::Status ReadIncludeReasoning(absl::string_view name, const Value& value,
                                  OpenAiRequest& request) {
  BATON_ASSIGN_OR_RETURN(request.include_reasoning, Bool(name, value));
  return absl::OkStatus();
}

constexpr Field kChatFields[] = {
    {"messages", nullptr, TakeMessages},
    {"logprobs", ReadWantsLogprobs},
    {"top_logprobs", ReadTopLogprobs},
    {"max_completion_tokens", ReadMaxCompletionTokens},
    {"modalities", ReadModalities},
    {"chat_template_kwargs", ReadTemplateVariables},
    {"add_generation_prompt", ReadGenerationPrompt},
    {"chat_template", Refuse},  // a template never comes from a request
    {"tools", ReadTools},
    {"tool_choice", ReadToolChoice},
    {"parallel_tool_calls", ReadParallelToolCalls},
    {"store", ReadStore},
    {"service_tier", ReadServiceTier},
    {"prompt_cache_key", ReadHint},
    {"safety_identifier", ReadHint},
    {"audio", Refuse},
    {"function_call", ReadFunctionCall},
    {"functions", ReadFunctions},
    {"metadata", ReadMetadata},
    {"moderation", Refuse},
    {"prediction", ReadPrediction},
    {"prompt_cache_options", Refuse},
    {"prompt_cache_retention", ReadAdvice},
    {"reasoning_effort", ReadReasoningEffort},
    {"include_reasoning", ReadIncludeReasoning},
    {"verbosity", ReadAdvice},
    {"web_search_options", Refuse},
};

const Field* FindField(absl::Span<const Field> fields, absl::string_view name) {
  const auto found = absl::c_find_if(fields, [&](const Field& f) { return f.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

absl::StatusOr<OpenAiRequest> ParseBody(absl::string_view body,
                                        absl::Span<const Field> own_fields) {
  const auto find = [&](absl::string_view name) {
    const Field* field = FindField(own_fields, name);
    return field == nullptr ? FindField(kCommonFields, name) : field;
  };
  const auto is_field = [&](absl::string_view name) { return find(name) != nullptr; };
  BodyReader reader(is_field, {"prompt", kMaxPrompts});
  const absl::Status read = json::Visit(body, "the request's body", reader);
  BATON_RETURN_IF_ERROR(reader.status());
  if (!read.ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "MALFORMED_JSON", read.message());
  }
  OpenAiRequest request;
  request.prompts = reader.TakePrompts();
  request.json_bytes = static_cast<int64_t>(2 * reader.values() * sizeof(Value));
  Value document = reader.TakeDocument();
  for (size_t i = 0; i < document.keys.size(); ++i) {
    if (document.items[i].is_null()) continue;
    BATON_RETURN_IF_ERROR(Read(*find(document.keys[i]), std::move(document.items[i]), request));
  }
  BATON_RETURN_IF_ERROR(SettleHints(request));
  return request;
}

// The newer name of max_tokens wins; an older one beside it must be valid all the same.
absl::Status ApplyMaxCompletionTokens(OpenAiRequest& request) {
  v1::StopConditions& stop = *request.generate.mutable_stop();
  if (stop.has_max_tokens() && stop.max_tokens() < 1) {
    return OutOfRange("max_tokens", absl::StrCat(stop.max_tokens()), "1 or more expected");
  }
  if (!request.max_completion_tokens) return absl::OkStatus();
  if (*request.max_completion_tokens < 1) {
    return OutOfRange("max_completion_tokens", absl::StrCat(*request.max_completion_tokens),
                      "1 or more expected");
  }
  stop.set_max_tokens(*request.max_completion_tokens);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpenAiRequest> ParseCompletion(absl::string_view body) {
  BATON_ASSIGN_OR_RETURN(OpenAiRequest request, ParseBody(body, kCompletionFields));
  v1::GenerateRequest& generate = request.generate;
  if (request.prompts.empty()) return InvalidField("MISSING_FIELD", "prompt", "required");
  // The server draws n answers and returns all of them.
  if (request.best_of != 1 && request.best_of != generate.n()) {
    return Unsupported("best_of", "only 1 and n are supported: all answers are returned");
  }
  if (request.echo && generate.has_logprobs()) {
    if (generate.has_truncation()) {
      return Unsupported("truncation", "not with echo and logprobs, which list the whole prompt");
    }
    generate.set_prompt_logprobs(generate.logprobs());
  }
  if (generate.stop().has_max_tokens() && generate.stop().max_tokens() == 0) {
    if (!request.echo) return OutOfRange("max_tokens", "0", "1 or more expected without echo");
    generate.set_prompt_logprobs(generate.logprobs());  // shown only with `logprobs`
  }
  generate.set_return_token_ids(generate.has_logprobs());
  return request;
}

absl::Status ReadChatField(absl::string_view name, const Value& value, OpenAiRequest& request) {
  const Field* field = FindField(kChatFields, name);
  if (field == nullptr) field = FindField(kCommonFields, name);
  if (field == nullptr) return InvalidField("UNKNOWN_FIELD", name, "unknown field");
  return Read(*field, value, request);
}

absl::Status FinishChat(OpenAiRequest& request) {
  if (request.wants_logprobs) request.generate.set_logprobs(request.top_logprobs.value_or(0));
  BATON_RETURN_IF_ERROR(ApplyMaxCompletionTokens(request));
  const v1::Truncation& truncation = request.generate.truncation();
  if (truncation.keep_first() != 0 || truncation.keep_last() != 0) {
    return InvalidField("NOT_WITH_MESSAGES", "truncation",
                        "keep_first or keep_last given for messages, of which whole ones are "
                        "dropped");
  }
  if (!request.may_call_tools) request.conversation.tools = Value();
  // The template has written them.
  if (!request.generate.has_add_special_tokens()) request.generate.set_add_special_tokens(false);
  request.generate.set_return_token_ids(request.generate.has_logprobs());
  return absl::OkStatus();
}

absl::StatusOr<OpenAiRequest> ParseChat(absl::string_view body) {
  BATON_ASSIGN_OR_RETURN(OpenAiRequest request, ParseBody(body, kChatFields));
  if (request.conversation.messages.items.empty()) {
    return InvalidField("MISSING_FIELD", "messages", "required");
  }
  BATON_RETURN_IF_ERROR(FinishChat(request));
  return request;
}

}  // namespace baton::router
