#include "common/worker/token_sampling.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"

namespace baton::worker {
namespace {

using Ids = google::protobuf::RepeatedField<int32_t>;

// A router adds the model's end-of-sequence ids to the client's stop token ids.
absl::Status CheckStopTokenIds(absl::string_view field, const Ids& ids, int vocab_size) {
  BATON_RETURN_IF_ERROR(
      CheckStopTokenIdCount(field, ids.size(), kMaxStopTokenIds + kMaxEosTokenIds));
  return CheckTokenIds(field, ids, vocab_size);
}

absl::Status CheckSampling(const internal::v1::TokenSampling& sampling, int vocab_size) {
  // Before anything is made of them.
  BATON_RETURN_IF_ERROR(CheckLogitBiasCount(sampling.logit_bias().size()));
  const model::SamplingParams params = FromProto(sampling);
  BATON_RETURN_IF_ERROR(model::Validate(params));
  if (params.logit_bias.empty()) return absl::OkStatus();
  return CheckLogitBiasId(params.logit_bias.back().first, vocab_size);
}

// What both messages have.
template <class Request>
absl::Status CheckCommon(const Request& request, int vocab_size) {
  const auto& tokens = TokensOf(request);
  BATON_RETURN_IF_ERROR(CheckTokenIds("tokens", tokens, vocab_size));
  BATON_RETURN_IF_ERROR(CheckRange("prompt_tokens", request.prompt_tokens(), 0, tokens.size()));
  BATON_RETURN_IF_ERROR(CheckSampling(request.sampling(), vocab_size));
  if (request.has_prompt_logprobs()) {
    BATON_RETURN_IF_ERROR(
        CheckRange("prompt_logprobs", request.prompt_logprobs(), 0, kMaxLogprobs));
  }
  if (!v1::Priority_IsValid(request.priority())) {
    return OutOfRange("priority", absl::StrCat(static_cast<int>(request.priority())),
                      "a value of baton.v1.Priority expected");
  }
  if (request.has_retention()) BATON_RETURN_IF_ERROR(CheckRetention(request.retention()));
  return CheckTenant(request.tenant());
}

// 0 choices and 0 beams mean one choice and sampling.
absl::Status CheckBeams(const internal::v1::DecodeRequest& request) {
  const int beams = request.beam_width();
  if (beams == 0) return CheckRange("n", request.n(), 0, kMaxChoices);
  BATON_RETURN_IF_ERROR(CheckRange("beam_width", beams, kMinBeamWidth, kMaxBeamWidth));
  BATON_RETURN_IF_ERROR(CheckRange("n", request.n(), 0, beams));
  return CheckLengthPenalty(request.length_penalty());
}

}  // namespace

model::SamplingParams FromProto(const internal::v1::TokenSampling& sampling) {
  model::SamplingParams params;
  params.temperature = sampling.temperature();
  params.top_p = sampling.top_p();
  params.top_k = sampling.top_k();
  params.min_p = sampling.min_p();
  params.seed = sampling.seed();
  params.choice = sampling.choice();
  if (sampling.repetition_penalty() != 0) params.repetition_penalty = sampling.repetition_penalty();
  params.frequency_penalty = sampling.frequency_penalty();
  params.presence_penalty = sampling.presence_penalty();
  params.logit_bias.assign(sampling.logit_bias().begin(), sampling.logit_bias().end());
  // A map is unordered.
  std::sort(params.logit_bias.begin(), params.logit_bias.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  if (sampling.has_logprobs()) params.logprobs = sampling.logprobs();
  return params;
}

internal::v1::TokenSampling ToProto(const model::SamplingParams& params) {
  internal::v1::TokenSampling sampling;
  sampling.set_temperature(params.temperature);
  sampling.set_top_p(params.top_p);
  sampling.set_top_k(params.top_k);
  sampling.set_min_p(params.min_p);
  sampling.set_seed(params.seed);
  sampling.set_choice(params.choice);
  sampling.set_repetition_penalty(params.repetition_penalty);
  sampling.set_frequency_penalty(params.frequency_penalty);
  sampling.set_presence_penalty(params.presence_penalty);
  for (const auto& [id, bias] : params.logit_bias) (*sampling.mutable_logit_bias())[id] = bias;
  if (params.logprobs) sampling.set_logprobs(*params.logprobs);
  return sampling;
}

v1::TokenLogprobs ToProto(const model::SampledToken& token) {
  v1::TokenLogprobs logprobs;
  logprobs.set_token_id(token.token_id);
  logprobs.set_logprob(token.logprob);
  for (const model::TokenLogprob& other : token.top) {
    v1::TokenLogprob* top = logprobs.add_top();
    top->set_token_id(other.token_id);
    top->set_logprob(other.logprob);
  }
  return logprobs;
}

std::vector<v1::TokenLogprobs> ToProto(const std::vector<model::SampledToken>& tokens) {
  std::vector<v1::TokenLogprobs> logprobs;
  logprobs.reserve(tokens.size());
  for (const model::SampledToken& token : tokens) logprobs.push_back(ToProto(token));
  return logprobs;
}

absl::Status CheckTokenFields(const internal::v1::DecodeRequest& request, int vocab_size) {
  if (!request.tokens().empty() && !request.fixed_tokens().empty()) {
    return OutOfRange("fixed_tokens", absl::StrCat(request.fixed_tokens_size(), " ids"),
                      absl::StrCat("none expected beside ", request.tokens_size(), " of tokens"));
  }
  BATON_RETURN_IF_ERROR(CheckCommon(request, vocab_size));
  BATON_RETURN_IF_ERROR(CheckStopTokenIds("stop_token_ids", request.stop_token_ids(), vocab_size));
  BATON_RETURN_IF_ERROR(
      CheckRange("max_tokens", request.max_tokens(), 1, std::numeric_limits<int32_t>::max()));
  BATON_RETURN_IF_ERROR(CheckRange("min_tokens", request.min_tokens(), 0, request.max_tokens()));
  return CheckBeams(request);
}

absl::Status CheckTokenFields(const internal::v1::PrefillRequest& request, int vocab_size) {
  BATON_RETURN_IF_ERROR(CheckCommon(request, vocab_size));
  return CheckStopTokenIds("suppressed_token_ids", request.suppressed_token_ids(), vocab_size);
}

}  // namespace baton::worker
