#include "client/cpp/convert.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"

namespace baton::client {
namespace {

Timings FromProto(const v1::Timings& timings) {
  return {timings.queue_ms(), timings.prefill_ms(), timings.kv_transfer_ms(), timings.decode_ms(),
          timings.ttft_ms()};
}

void FillSampling(const Sampling& sampling, v1::SamplingParams* out) {
  if (sampling.temperature) out->set_temperature(*sampling.temperature);
  if (sampling.top_p) out->set_top_p(*sampling.top_p);
  if (sampling.top_k) out->set_top_k(*sampling.top_k);
  if (sampling.min_p) out->set_min_p(*sampling.min_p);
  if (sampling.seed) out->set_seed(*sampling.seed);
  if (sampling.repetition_penalty) out->set_repetition_penalty(*sampling.repetition_penalty);
  if (sampling.frequency_penalty) out->set_frequency_penalty(*sampling.frequency_penalty);
  if (sampling.presence_penalty) out->set_presence_penalty(*sampling.presence_penalty);
  out->mutable_logit_bias()->insert(sampling.logit_bias.begin(), sampling.logit_bias.end());
}

// "WORKER_STATE_READY" to "ready".
std::string ShortName(absl::string_view name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

v1::Retention ToProto(const Retention& retention) {
  v1::Retention out;
  if (retention.until_token) out.set_until_token(*retention.until_token);
  out.set_priority(retention.priority);
  out.set_ttl_ms(retention.ttl_ms);
  return out;
}

// The name in the message of what constrains an answer; empty if that is nothing of
// GenerateRequest.
absl::string_view NameOfKind(v1::StructuredOutput::KindCase kind) {
  switch (kind) {
    case v1::StructuredOutput::kJsonObject:
      return "json_object";
    case v1::StructuredOutput::kJsonSchema:
      return "json_schema";
    case v1::StructuredOutput::kRegex:
      return "regex";
    case v1::StructuredOutput::kChoices:
      return "choices";
    default:
      return "";
  }
}

CacheMiss FromProto(const v1::CacheMiss& miss) {
  return {ShortName(v1::CacheMissCause_Name(miss.cause()), "CACHE_MISS_CAUSE_"),
          miss.first_different_token(),
          miss.text(),
          miss.earlier_text(),
          miss.lost_tokens(),
          miss.lost_ms(),
          miss.earlier_request_id()};
}

}  // namespace

FinishReason FromProto(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_STOP     ? FinishReason::kStop
         : reason == v1::FINISH_REASON_LENGTH ? FinishReason::kLength
                                              : FinishReason::kUnfinished;
}

v1::Priority ToProto(Priority priority) {
  switch (priority) {
    case Priority::kDefault:
      return v1::PRIORITY_UNSPECIFIED;
    case Priority::kLow:
      return v1::PRIORITY_LOW;
    case Priority::kNormal:
      return v1::PRIORITY_NORMAL;
    case Priority::kHigh:
      return v1::PRIORITY_HIGH;
  }
  return v1::PRIORITY_UNSPECIFIED;
}

v1::GenerateRequest ToProto(const GenerateRequest& request) {
  v1::GenerateRequest out;
  out.set_model(request.model);
  for (const ChatMessage& message : request.messages) {
    v1::ChatMessage* proto = out.mutable_messages()->add_messages();
    proto->set_role(message.role);
    proto->set_content(message.content);
  }
  if (request.messages.empty() && request.token_ids.empty()) {
    out.set_text(request.text);
  } else if (request.messages.empty()) {
    out.mutable_token_ids()->mutable_ids()->Assign(request.token_ids.begin(),
                                                   request.token_ids.end());
  }
  FillSampling(request.sampling, out.mutable_sampling());
  if (request.max_tokens) out.mutable_stop()->set_max_tokens(*request.max_tokens);
  for (const std::string& stop : request.stop) out.mutable_stop()->add_stop(stop);
  for (int32_t id : request.stop_token_ids) out.mutable_stop()->add_stop_token_ids(id);
  out.mutable_stop()->set_ignore_eos(request.ignore_eos);
  out.set_request_id(request.request_id);
  out.set_cache_salt(request.cache_salt);
  out.set_return_token_ids(request.return_token_ids);
  if (request.min_tokens) out.mutable_stop()->set_min_tokens(*request.min_tokens);
  if (request.json_object) out.mutable_structured_output()->mutable_json_object();
  if (!request.json_schema.empty()) {
    out.mutable_structured_output()->set_json_schema(request.json_schema);
  }
  if (!request.regex.empty()) out.mutable_structured_output()->set_regex(request.regex);
  for (const std::string& text : request.answer_texts) {
    out.mutable_structured_output()->mutable_choices()->add_texts(text);
  }
  if (request.any_whitespace && out.has_structured_output()) {
    out.mutable_structured_output()->set_any_whitespace(true);
  }
  if (request.n) out.set_n(*request.n);
  if (request.beam_width) out.set_beam_width(*request.beam_width);
  if (request.length_penalty) out.set_length_penalty(*request.length_penalty);
  if (request.logprobs) out.set_logprobs(*request.logprobs);
  if (request.prompt_logprobs) out.set_prompt_logprobs(*request.prompt_logprobs);
  out.set_priority(ToProto(request.priority));
  out.set_tenant(request.tenant);
  if (request.truncation) {
    const Truncation& from = *request.truncation;
    v1::Truncation* to = out.mutable_truncation();
    if (from.keep_first) to->set_keep_first(*from.keep_first);
    if (from.keep_last) to->set_keep_last(*from.keep_last);
    if (from.retention_ratio) to->set_retention_ratio(*from.retention_ratio);
  }
  for (const PromptSegment& segment : request.segments) {
    v1::PromptSegment* to = out.add_segments();
    to->set_source(static_cast<v1::PromptSource>(segment.source));
    to->set_length(segment.length);
  }
  if (request.add_special_tokens) out.set_add_special_tokens(*request.add_special_tokens);
  if (request.split_special_tokens) out.set_split_special_tokens(*request.split_special_tokens);
  if (request.retention) *out.mutable_retention() = ToProto(*request.retention);
  out.set_explain_cache(request.explain_cache);
  if (request.speculation) out.set_speculation(*request.speculation);
  return out;
}

Usage FromProto(const v1::Usage& usage) {
  Usage out;
  out.prompt_tokens = usage.prompt_tokens();
  out.cached_prompt_tokens = usage.cached_prompt_tokens();
  out.generated_tokens = usage.generated_tokens();
  out.kv_bytes = usage.kv_bytes();
  if (usage.has_cache_miss()) out.cache_miss = FromProto(usage.cache_miss());
  out.dropped_prompt_tokens = usage.dropped_prompt_tokens();
  out.draft_tokens = usage.draft_tokens();
  out.accepted_draft_tokens = usage.accepted_draft_tokens();
  for (const v1::SourceUsage& source : usage.by_source()) {
    out.by_source[static_cast<PromptSource>(source.source())] = {source.tokens(), source.cached()};
  }
  return out;
}

Worker FromProto(const v1::WorkerStatus& status) {
  Worker worker;
  worker.address = status.address();
  worker.role = ShortName(v1::WorkerRole_Name(status.role()), "WORKER_ROLE_");
  worker.state = ShortName(v1::WorkerState_Name(status.state()), "WORKER_STATE_");
  worker.detail = status.detail();
  worker.running = status.running();
  worker.queued = status.queued();
  worker.total_blocks = status.total_blocks();
  worker.free_blocks = status.free_blocks();
  worker.indexed_blocks = status.indexed_blocks();
  for (const int capability : status.capabilities()) {
    worker.capabilities.push_back(
        ShortName(v1::WorkerCapability_Name(static_cast<v1::WorkerCapability>(capability)),
                  "WORKER_CAPABILITY_"));
  }
  return worker;
}

std::vector<TokenLogprobs> FromProto(
    const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& logprobs) {
  std::vector<TokenLogprobs> tokens;
  tokens.reserve(static_cast<size_t>(logprobs.size()));
  for (const v1::TokenLogprobs& proto : logprobs) {
    TokenLogprobs& token = tokens.emplace_back();
    token.token_id = proto.token_id();
    token.logprob = proto.logprob();
    for (const v1::TokenLogprob& top : proto.top()) {
      token.top.push_back({top.token_id(), top.logprob()});
    }
  }
  return tokens;
}

bool Merge(const v1::GenerateResponse& response, Completion* completion) {
  const auto index = static_cast<size_t>(response.choice());
  if (index >= completion->choices.size()) return false;
  Choice& choice = completion->choices[index];
  choice.text += response.text();
  choice.token_ids.insert(choice.token_ids.end(), response.token_ids().begin(),
                          response.token_ids().end());
  std::vector<TokenLogprobs> logprobs = FromProto(response.logprobs());
  std::move(logprobs.begin(), logprobs.end(), std::back_inserter(choice.logprobs));
  logprobs = FromProto(response.prompt_logprobs());
  std::move(logprobs.begin(), logprobs.end(), std::back_inserter(completion->prompt_logprobs));
  if (response.has_usage()) completion->usage = FromProto(response.usage());
  if (!response.request_id().empty()) completion->request_id = response.request_id();
  if (response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    choice.finish_reason = FromProto(response.finish_reason());
    choice.matched_stop = response.matched_stop();
    choice.beam_score = response.beam_score();
    completion->timings = FromProto(response.timings());
    completion->seed = response.seed();
  }
  return true;
}

Completion FromProto(v1::GenerateOnceResponse response) {
  Completion completion;
  completion.choices.clear();
  completion.usage = FromProto(response.usage());
  completion.timings = FromProto(response.timings());
  completion.seed = response.seed();
  completion.request_id = response.request_id();
  completion.prompt_logprobs = FromProto(response.prompt_logprobs());
  for (v1::Choice& proto : *response.mutable_choices()) {
    Choice& choice = completion.choices.emplace_back();
    choice.text = std::move(*proto.mutable_text());
    choice.token_ids.assign(proto.token_ids().begin(), proto.token_ids().end());
    choice.finish_reason = FromProto(proto.finish_reason());
    choice.matched_stop = proto.matched_stop();
    choice.logprobs = FromProto(proto.logprobs());
    choice.beam_score = proto.beam_score();
  }
  if (completion.choices.empty()) completion.choices.resize(1);  // unfinished
  return completion;
}

absl::Status InCallersNames(const absl::Status& error, const v1::GenerateRequest& request) {
  const std::string field = ErrorField(error);
  absl::string_view name = field;
  if (field == "structured_output") {
    name = NameOfKind(request.structured_output().kind_case());
    if (name.empty()) return error;
  } else if (!absl::ConsumePrefix(&name, "stop.") &&
             !absl::ConsumePrefix(&name, "structured_output.")) {
    return error;
  }
  std::string callers(name);
  if (absl::ConsumePrefix(&name, "choices")) callers = absl::StrCat("answer_texts", name);
  // A message about a field begins with it.
  absl::string_view text = error.message();
  const bool named = absl::ConsumePrefix(&text, absl::StrCat(field, ": "));
  absl::Status renamed(error.code(), named ? absl::StrCat(callers, ": ", text) : text);
  error.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& payload) { renamed.SetPayload(url, payload); });
  return WithDetails(std::move(renamed), /*reason=*/"", callers, /*retry_after=*/std::nullopt);
}

}  // namespace baton::client
