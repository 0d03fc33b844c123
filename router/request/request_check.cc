#include "router/request/request_check.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/random_id.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grammar/from_proto.h"
#include "common/grammar/schema_check.h"
#include "router/request/answer_length.h"
#include "router/request/prompt_sources.h"
#include "router/request/truncation.h"

namespace baton::router {
namespace {

// Where neither the request nor the model's generation_config.json says.
constexpr float kDefaultTemperature = 1.0f;
constexpr float kDefaultTopP = 1.0f;
constexpr float kDefaultRepetitionPenalty = 1.0f;
constexpr float kDefaultLengthPenalty = 1.0f;
constexpr int kMaxChatMessages = 4096;
constexpr size_t kMaxNamedBytes = 128;  // of a wrong name, in the message that says so

absl::Status CheckSampling(const v1::SamplingParams& sampling) {
  SamplingNumbers numbers;
  if (sampling.has_temperature()) numbers.temperature = sampling.temperature();
  if (sampling.has_top_p()) numbers.top_p = sampling.top_p();
  if (sampling.has_repetition_penalty()) numbers.repetition_penalty = sampling.repetition_penalty();
  // Absent, these read 0, which is none.
  numbers.top_k = sampling.top_k();
  numbers.min_p = sampling.min_p();
  numbers.frequency_penalty = sampling.frequency_penalty();
  numbers.presence_penalty = sampling.presence_penalty();
  BATON_RETURN_IF_ERROR(CheckSamplingNumbers(numbers));
  BATON_RETURN_IF_ERROR(CheckLogitBiasCount(sampling.logit_bias().size()));
  for (const auto& [id, bias] : sampling.logit_bias()) {
    BATON_RETURN_IF_ERROR(CheckLogitBias(id, bias));
  }
  return absl::OkStatus();
}

absl::Status CheckStop(const v1::StopConditions& stop, bool has_prompt_logprobs) {
  if (stop.has_max_tokens() && stop.max_tokens() < (has_prompt_logprobs ? 0 : 1)) {
    return OutOfRange("stop.max_tokens", absl::StrCat(stop.max_tokens()),
                      "1 or more expected, or 0 with prompt_logprobs");
  }
  if (stop.has_min_tokens() && stop.min_tokens() < 0) {
    return OutOfRange("stop.min_tokens", absl::StrCat(stop.min_tokens()), "0 or more expected");
  }
  if (stop.has_min_tokens() && stop.has_max_tokens() && stop.min_tokens() > stop.max_tokens()) {
    return OutOfRange("stop.min_tokens", absl::StrCat(stop.min_tokens()),
                      absl::StrCat("at most max_tokens, ", stop.max_tokens(), ", expected"));
  }
  if (stop.stop_size() > kMaxStopStrings) {
    return InvalidField(
        "TOO_MANY_STOPS", "stop.stop",
        absl::StrCat(stop.stop_size(), " strings given, at most ", kMaxStopStrings, " expected"));
  }
  for (const std::string& text : stop.stop()) {
    if (text.empty()) {
      return InvalidField("EMPTY_STOP", "stop.stop", "an empty string would stop every text");
    }
    if (text.size() > kMaxStopStringBytes) {
      return OutOfRange("stop.stop", absl::StrCat("a string of ", text.size(), " bytes"),
                        absl::StrCat("at most ", kMaxStopStringBytes, " expected"));
    }
  }
  return CheckStopTokenIdCount("stop.stop_token_ids", stop.stop_token_ids_size(), kMaxStopTokenIds);
}

absl::Status NotWithBeams(absl::string_view field, absl::string_view why) {
  return InvalidField("NOT_WITH_BEAM_SEARCH", field,
                      absl::StrCat("given together with beam_width, which ", why));
}

// What beam search can't be combined with.
absl::Status CheckBeams(const v1::GenerateRequest& request) {
  if (!request.has_beam_width()) {
    if (!request.has_length_penalty()) return absl::OkStatus();
    return InvalidField("ONLY_WITH_BEAM_SEARCH", "length_penalty", "given without beam_width");
  }
  BATON_RETURN_IF_ERROR(
      CheckRange("beam_width", request.beam_width(), kMinBeamWidth, kMaxBeamWidth));
  if (request.n() > request.beam_width()) {
    return OutOfRange("n", absl::StrCat(request.n()),
                      absl::StrCat("at most beam_width, ", request.beam_width(), ", expected"));
  }
  BATON_RETURN_IF_ERROR(CheckLengthPenalty(request.length_penalty()));
  const v1::SamplingParams& sampling = request.sampling();
  const struct {
    bool given;
    const char* field;
  } excluded[] = {
      {sampling.has_temperature(), "sampling.temperature"},
      {sampling.has_top_p(), "sampling.top_p"},
      {sampling.has_top_k(), "sampling.top_k"},
      {sampling.has_min_p(), "sampling.min_p"},
      {sampling.has_seed(), "sampling.seed"},
      {sampling.has_repetition_penalty(), "sampling.repetition_penalty"},
      {sampling.has_frequency_penalty(), "sampling.frequency_penalty"},
      {sampling.has_presence_penalty(), "sampling.presence_penalty"},
  };
  for (const auto& [given, field] : excluded) {
    if (given) return NotWithBeams(field, "draws nothing: of sampling it takes logit_bias alone");
  }
  // A beam that ended at a stop string would have to be scored by its length there, by workers that
  // see no text.
  if (request.stop().stop_size() > 0) {
    return NotWithBeams("stop.stop", "compares tokens; stop_token_ids may be given");
  }
  return absl::OkStatus();
}

absl::Status CheckChoices(const v1::GenerateRequest& request) {
  if (request.has_n()) BATON_RETURN_IF_ERROR(CheckRange("n", request.n(), 1, kMaxChoices));
  if (request.has_logprobs()) {
    BATON_RETURN_IF_ERROR(CheckRange("logprobs", request.logprobs(), 0, kMaxLogprobs));
  }
  if (request.has_prompt_logprobs()) {
    BATON_RETURN_IF_ERROR(
        CheckRange("prompt_logprobs", request.prompt_logprobs(), 0, kMaxLogprobs));
  }
  return CheckBeams(request);
}

absl::Status CheckStructuredOutput(const v1::GenerateRequest& request) {
  if (!request.has_structured_output()) return absl::OkStatus();
  BATON_RETURN_IF_ERROR(grammar::CheckBeside(request.has_beam_width(), request.stop().ignore_eos(),
                                             request.stop().min_tokens() > 0));
  return grammar::CheckSpec(grammar::FromProto(request.structured_output()));
}

// Bounds what a rendering is given; the text that it makes is checked then.
absl::Status CheckMessages(const v1::ChatMessages& messages, int64_t max_prompt_bytes) {
  if (messages.messages().empty()) {
    return InvalidField("EMPTY_PROMPT", "messages", "the conversation is empty");
  }
  BATON_RETURN_IF_ERROR(CheckRange("messages", messages.messages_size(), 1, kMaxChatMessages));
  int64_t bytes = 0;
  for (int i = 0; i < messages.messages_size(); ++i) {
    const v1::ChatMessage& message = messages.messages(i);
    if (message.role().empty()) {
      return InvalidField("MISSING_FIELD", absl::StrCat("messages[", i, "].role"), "required");
    }
    bytes += static_cast<int64_t>(message.role().size() + message.content().size());
  }
  if (bytes <= max_prompt_bytes) return absl::OkStatus();
  return InvalidField("PROMPT_TOO_LONG", "messages",
                      absl::StrCat(bytes, " bytes of messages given, at most ", max_prompt_bytes,
                                   " accepted (--max-prompt-bytes)"));
}

absl::Status CheckPrompt(const v1::GenerateRequest& request, int64_t max_prompt_bytes) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      if (request.text().empty()) {
        return InvalidField("EMPTY_PROMPT", "text", "the prompt is empty");
      }
      return CheckText("text", request.text(), max_prompt_bytes);
    case v1::GenerateRequest::kTokenIds:
      if (request.token_ids().ids().empty()) {
        return InvalidField("EMPTY_PROMPT", "token_ids", "the prompt is empty");
      }
      return CheckTokenCount("token_ids", request.token_ids().ids_size(), max_prompt_bytes);
    case v1::GenerateRequest::kMessages:
      return CheckMessages(request.messages(), max_prompt_bytes);
    default:
      return InvalidField("EMPTY_PROMPT", "prompt", "none of text, token_ids and messages is set");
  }
}

using TokenIds = google::protobuf::RepeatedField<int32_t>;

// The prompt's tokens, checked against the vocabulary, and against the context unless they are to
// be truncated. Takes those of `request`, of which there may be a million.
absl::StatusOr<TokenIds> TakePromptTokens(v1::GenerateRequest& request,
                                          const tokenizer::Tokenizer& tokenizer,
                                          int max_model_len) {
  const bool is_text = request.has_text();
  const char* field = is_text ? "text" : "token_ids";
  TokenIds tokens;
  if (is_text) {
    const bool special = !request.has_add_special_tokens() || request.add_special_tokens();
    BATON_ASSIGN_OR_RETURN(
        const std::vector<int32_t> ids,
        tokenizer.Encode(request.text(), special,
                         SplitOfText(request.split_special_tokens(), request.text())));
    tokens.Assign(ids.begin(), ids.end());
  } else {
    BATON_RETURN_IF_ERROR(CheckIdCount(request, max_model_len));
    BATON_RETURN_IF_ERROR(CheckTokenIds(field, request.token_ids().ids(), tokenizer.vocab_size()));
    tokens.Swap(request.mutable_token_ids()->mutable_ids());
  }
  if (tokens.empty()) return InvalidField("EMPTY_PROMPT", field, "the prompt has no tokens");
  const int64_t count = static_cast<int64_t>(tokens.size());
  if (!request.has_truncation() && count + 1 > max_model_len) {
    return TooLong(field, count, max_model_len);
  }
  return tokens;
}

// Drops what truncation demands of `tokens`, and notes sources and loss.
absl::Status Truncate(const v1::GenerateRequest& request, int room, TokenIds* tokens,
                      PreparedRequest* prepared) {
  if (!request.has_truncation()) return absl::OkStatus();
  int dropped = 0;
  BATON_ASSIGN_OR_RETURN(
      dropped, TokensToDrop(request.truncation(), static_cast<int64_t>(tokens->size()), room));
  if (dropped == 0) return absl::OkStatus();
  const int first = request.truncation().keep_first();
  tokens->erase(tokens->begin() + first, tokens->begin() + first + dropped);
  DropTokens(first, dropped, &prepared->sources);
  prepared->dropped_prompt_tokens = dropped;
  return absl::OkStatus();
}

// An absent limit reads 0.
absl::Status CheckRoom(absl::string_view field, int limit, size_t prompt_tokens, int room) {
  if (limit <= room) return absl::OkStatus();
  return InvalidField(
      "CONTEXT_LENGTH_EXCEEDED", field,
      absl::StrCat(limit, " given, at most ", room, " expected: the prompt takes ", prompt_tokens,
                   " of the context's ", prompt_tokens + room, " tokens"));
}

void FillSampling(const v1::SamplingParams& sampling,
                  const internal::v1::GenerationDefaults& defaults,
                  internal::v1::TokenSampling* out) {
  out->set_temperature(sampling.has_temperature()   ? sampling.temperature()
                       : defaults.has_temperature() ? defaults.temperature()
                                                    : kDefaultTemperature);
  out->set_top_p(sampling.has_top_p()   ? sampling.top_p()
                 : defaults.has_top_p() ? defaults.top_p()
                                        : kDefaultTopP);
  out->set_min_p(sampling.has_min_p() ? sampling.min_p() : defaults.min_p());
  // Workers know 0 only for "no limit".
  out->set_top_k(std::max(0, sampling.has_top_k() ? sampling.top_k() : defaults.top_k()));
  out->set_seed(sampling.has_seed() ? sampling.seed() : RandomId64());
  out->set_choice(0);
  out->set_repetition_penalty(sampling.has_repetition_penalty()   ? sampling.repetition_penalty()
                              : defaults.has_repetition_penalty() ? defaults.repetition_penalty()
                                                                  : kDefaultRepetitionPenalty);
  out->set_frequency_penalty(sampling.frequency_penalty());
  out->set_presence_penalty(sampling.presence_penalty());
  *out->mutable_logit_bias() = sampling.logit_bias();
}

// Beam search ranks the model's own distribution: the model's defaults for sampling don't count.
void FillBeamSampling(const v1::SamplingParams& sampling, internal::v1::TokenSampling* out) {
  out->set_temperature(kDefaultTemperature);
  out->set_top_p(kDefaultTopP);
  out->set_repetition_penalty(kDefaultRepetitionPenalty);
  *out->mutable_logit_bias() = sampling.logit_bias();
}

// What is asked for beside the sampling of one choice.
void FillChoices(const v1::GenerateRequest& request, internal::v1::DecodeRequest* out) {
  out->set_n(request.has_n() ? request.n() : 1);
  if (request.has_beam_width()) {
    out->set_beam_width(request.beam_width());
    out->set_length_penalty(request.has_length_penalty() ? request.length_penalty()
                                                         : kDefaultLengthPenalty);
  }
  if (request.has_logprobs()) out->mutable_sampling()->set_logprobs(request.logprobs());
  if (request.has_prompt_logprobs()) out->set_prompt_logprobs(request.prompt_logprobs());
  out->set_min_tokens(request.stop().min_tokens());
  out->set_priority(request.priority());
  out->set_tenant(request.tenant());
}

}  // namespace

absl::Status CheckRequestId(absl::string_view id) {
  if (id.size() <= kMaxRequestIdBytes && std::all_of(id.begin(), id.end(), absl::ascii_isprint)) {
    return absl::OkStatus();
  }
  return InvalidField(
      "BAD_REQUEST_ID", "request_id",
      absl::StrCat("at most ", kMaxRequestIdBytes, " printable ASCII characters expected"));
}

absl::Status CheckNames(const v1::GenerateRequest& request) {
  BATON_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  BATON_RETURN_IF_ERROR(CheckTenant(request.tenant()));
  if (!v1::Priority_IsValid(request.priority())) {
    return OutOfRange("priority", absl::StrCat(static_cast<int>(request.priority())),
                      "a value of baton.v1.Priority expected");
  }
  if (request.cache_salt().size() > kMaxCacheSaltBytes) {
    return OutOfRange("cache_salt", absl::StrCat(request.cache_salt().size(), " bytes"),
                      absl::StrCat("at most ", kMaxCacheSaltBytes, " expected"));
  }
  return absl::OkStatus();
}

ByteRanges SplitOfText(bool split_special_tokens, absl::string_view text) {
  ByteRanges split;
  if (split_special_tokens) AppendRange(0, text.size(), &split);
  return split;
}

absl::Status CheckModel(const std::string& model, const std::string& served_model_name) {
  if (model.empty() || model == served_model_name) return absl::OkStatus();
  return WithDetails(
      MakeError(absl::StatusCode::kNotFound, "MODEL_NOT_FOUND",
                absl::StrCat("model: \"", ClipToUtf8(model, kMaxNamedBytes),
                             "\" is not served here; \"", served_model_name, "\" is")),
      "", "model", std::nullopt);
}

absl::Status CheckTokenCount(absl::string_view field, int64_t count, int64_t max_prompt_bytes) {
  // No token stands for less than a byte of text.
  if (count <= max_prompt_bytes) return absl::OkStatus();
  return InvalidField("PROMPT_TOO_LONG", field,
                      absl::StrCat(count, " ids given, at most ", max_prompt_bytes,
                                   " accepted (--max-prompt-bytes)"));
}

absl::Status CheckText(absl::string_view field, const std::string& text, int64_t max_prompt_bytes) {
  const int64_t size = static_cast<int64_t>(text.size());
  if (size <= max_prompt_bytes) return absl::OkStatus();
  return InvalidField("PROMPT_TOO_LONG", field,
                      absl::StrCat(size, " bytes of text given, at most ", max_prompt_bytes,
                                   " accepted (--max-prompt-bytes)"));
}

// Clients such as LiteLLM know the error by the words "this model's maximum context length is".
absl::Status TooLong(absl::string_view field, int64_t prompt_tokens, int max_model_len) {
  return InvalidField("PROMPT_TOO_LONG", field,
                      absl::StrCat("the prompt has ", prompt_tokens,
                                   " tokens, and an answer has at least one; this model's maximum "
                                   "context length is ",
                                   max_model_len, " tokens"));
}

absl::Status CheckIdCount(const v1::GenerateRequest& request, int max_model_len) {
  if (request.has_truncation()) return absl::OkStatus();
  const int count = request.token_ids().ids_size();
  return count < max_model_len ? absl::OkStatus() : TooLong("token_ids", count, max_model_len);
}

absl::Status CheckRequest(const v1::GenerateRequest& request, const std::string& served_model_name,
                          int64_t max_prompt_bytes) {
  BATON_RETURN_IF_ERROR(CheckModel(request.model(), served_model_name));
  BATON_RETURN_IF_ERROR(CheckNames(request));
  BATON_RETURN_IF_ERROR(CheckPrompt(request, max_prompt_bytes));
  BATON_RETURN_IF_ERROR(CheckSampling(request.sampling()));
  BATON_RETURN_IF_ERROR(CheckStop(request.stop(), request.has_prompt_logprobs()));
  BATON_RETURN_IF_ERROR(CheckStructuredOutput(request));
  if (request.has_retention()) BATON_RETURN_IF_ERROR(CheckRetention(request.retention()));
  BATON_RETURN_IF_ERROR(CheckTruncation(request));
  BATON_RETURN_IF_ERROR(CheckSegments(request));
  return CheckChoices(request);
}

absl::StatusOr<PreparedRequest> PrepareRequest(v1::GenerateRequest request,
                                               const tokenizer::Tokenizer& tokenizer,
                                               const ModelInfo& model,
                                               const RequestClass& request_class) {
  BATON_RETURN_IF_ERROR(CheckTokenIds("stop.stop_token_ids", request.stop().stop_token_ids(),
                                      tokenizer.vocab_size()));
  for (const auto& [id, bias] : request.sampling().logit_bias()) {
    BATON_RETURN_IF_ERROR(CheckLogitBiasId(id, tokenizer.vocab_size()));
  }
  const int context = ContextOf(model, request_class);
  const v1::StopConditions& stop = request.stop();
  PreparedRequest prepared;
  TokenIds tokens;
  BATON_ASSIGN_OR_RETURN(tokens, TakePromptTokens(request, tokenizer, context));
  BATON_ASSIGN_OR_RETURN(prepared.sources, SourcesOf(request, tokens, tokenizer));
  BATON_RETURN_IF_ERROR(
      Truncate(request, RoomForPrompt(stop, model, request_class), &tokens, &prepared));
  const int room = context - static_cast<int>(tokens.size());
  BATON_RETURN_IF_ERROR(CheckRoom("stop.max_tokens", stop.max_tokens(), tokens.size(), room));
  BATON_RETURN_IF_ERROR(CheckRoom("stop.min_tokens", stop.min_tokens(), tokens.size(), room));
  const int64_t logprobs_per_token = int64_t{request.prompt_logprobs()} + 1;
  if (request.has_prompt_logprobs() &&
      static_cast<int64_t>(tokens.size()) * logprobs_per_token > kMaxPromptLogprobs) {
    return OutOfRange("prompt_logprobs",
                      absl::StrCat(request.prompt_logprobs(), " for ", tokens.size(), " tokens"),
                      absl::StrCat("at most ", kMaxPromptLogprobs,
                                   " log probabilities in all expected, the tokens' own included"));
  }
  prepared.root = kv::RootPrefixKey(model.fingerprint, request.cache_salt(), /*adapter=*/"");
  prepared.block_tokens = model.block_tokens;
  prepared.keys = kv::PrefixKeys(prepared.root, tokens, model.block_tokens);
  prepared.stops.assign(stop.stop().begin(), stop.stop().end());
  prepared.return_token_ids = request.return_token_ids();
  prepared.explain_cache = request.explain_cache();
  prepared.prompt_only = stop.has_max_tokens() && stop.max_tokens() == 0;
  internal::v1::DecodeRequest& decode = prepared.decode;
  decode.set_model_fingerprint(model.fingerprint);
  const int token_count = tokens.size();
  decode.mutable_tokens()->Swap(&tokens);
  decode.set_prompt_tokens(token_count);
  if (request.has_beam_width()) {
    FillBeamSampling(request.sampling(), decode.mutable_sampling());
  } else {
    FillSampling(request.sampling(), model.defaults, decode.mutable_sampling());
  }
  FillChoices(request, &decode);
  // Workers compute a prompt for a token behind it, so a prompt that is only scored asks for one,
  // too.
  decode.set_max_tokens(stop.has_max_tokens()
                            ? std::max(1, stop.max_tokens())
                            : DefaultMaxTokens(request, model, request_class, token_count, room));
  *decode.mutable_stop_token_ids() = stop.stop_token_ids();
  if (!stop.ignore_eos()) {
    for (int32_t id : model.eos_token_ids) decode.add_stop_token_ids(id);
  }
  decode.set_cache_salt(request.cache_salt());
  decode.set_no_speculation(request.has_speculation() && !request.speculation());
  if (request.has_retention()) *decode.mutable_retention() = request.retention();
  if (request.has_structured_output()) {
    *decode.mutable_structured_output() = request.structured_output();
  }
  return prepared;
}

}  // namespace baton::router
