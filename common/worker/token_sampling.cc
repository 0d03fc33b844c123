#include "common/worker/token_sampling.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::worker {
namespace {

using Ids = google::protobuf::RepeatedField<int32_t>;

constexpr int kMaxStopTokenIds = 1024;
constexpr int kMaxChoices = 16;
constexpr int kMaxBeamWidth = 16;
constexpr size_t kMaxTenantBytes = 128;

absl::Status CheckIds(absl::string_view field, const Ids& ids, int vocab_size) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocab_size) continue;
    return InvalidField("TOKEN_ID", field,
                        absl::StrCat("id ", id, ", expected 0 to ", vocab_size - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckStopTokenIds(absl::string_view field, const Ids& ids, int vocab_size) {
  if (ids.size() > kMaxStopTokenIds) {
    return InvalidField("STOP_TOKEN_IDS", field,
                        absl::StrCat(ids.size(), " given, expected at most ", kMaxStopTokenIds));
  }
  return CheckIds(field, ids, vocab_size);
}

absl::Status OutOfRange(absl::string_view field, double found, absl::string_view expected) {
  return InvalidField("INVALID_SAMPLING", field,
                      absl::StrCat("found ", found, ", expected ", expected));
}

absl::Status CheckSampling(const internal::v1::TokenSampling& sampling, int vocab_size) {
  // Before anything is made of them.
  if (sampling.logit_bias_size() > model::kMaxLogitBiases) {
    return OutOfRange("sampling.logit_bias", sampling.logit_bias_size(), "at most 1024 ids");
  }
  const model::SamplingParams params = FromProto(sampling);
  BATON_RETURN_IF_ERROR(model::Validate(params));
  if (!params.logit_bias.empty() && params.logit_bias.back().first >= vocab_size) {
    return InvalidField(
        "TOKEN_ID", "sampling.logit_bias",
        absl::StrCat("id ", params.logit_bias.back().first, ", expected 0 to ", vocab_size - 1));
  }
  return absl::OkStatus();
}

// What both messages have.
template <class Request>
absl::Status CheckCommon(const Request& request, int vocab_size) {
  BATON_RETURN_IF_ERROR(CheckIds("tokens", request.tokens(), vocab_size));
  if (request.prompt_tokens() < 0 || request.prompt_tokens() > request.tokens_size()) {
    return InvalidField("PROMPT_LENGTH", "prompt_tokens",
                        absl::StrCat(request.prompt_tokens(), " given, expected 0 to ",
                                     request.tokens_size(), ", the number of tokens"));
  }
  BATON_RETURN_IF_ERROR(CheckSampling(request.sampling(), vocab_size));
  if (request.has_prompt_logprobs() &&
      (request.prompt_logprobs() < 0 || request.prompt_logprobs() > model::kMaxLogprobs)) {
    return OutOfRange("prompt_logprobs", request.prompt_logprobs(), "0 to 20");
  }
  if (!v1::Priority_IsValid(request.priority())) {
    return InvalidField(
        "PRIORITY", "priority",
        absl::StrCat(static_cast<int>(request.priority()), " is none that this worker knows"));
  }
  const std::string& tenant = request.tenant();
  if (tenant.size() > kMaxTenantBytes ||
      !std::all_of(tenant.begin(), tenant.end(), absl::ascii_isprint)) {
    return InvalidField(
        "BAD_TENANT", "tenant",
        absl::StrCat("at most ", kMaxTenantBytes, " printable ASCII characters expected"));
  }
  return absl::OkStatus();
}

absl::Status CheckBeams(const internal::v1::DecodeRequest& request) {
  if (request.n() < 0 || request.n() > kMaxChoices) {
    return OutOfRange("n", request.n(), "0 to 16");
  }
  const int beams = request.beam_width();
  if (beams == 0) return absl::OkStatus();
  if (beams < 2 || beams > kMaxBeamWidth) return OutOfRange("beam_width", beams, "0 or 2 to 16");
  if (request.n() > beams) return OutOfRange("n", request.n(), "at most beam_width");
  if (!std::isfinite(request.length_penalty())) {
    return OutOfRange("length_penalty", request.length_penalty(), "a number");
  }
  return absl::OkStatus();
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
  // A map has no order of its own.
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
  BATON_RETURN_IF_ERROR(CheckCommon(request, vocab_size));
  BATON_RETURN_IF_ERROR(CheckStopTokenIds("stop_token_ids", request.stop_token_ids(), vocab_size));
  if (request.max_tokens() < 1) {
    return InvalidField("MAX_TOKENS", "max_tokens",
                        absl::StrCat(request.max_tokens(), " given, expected 1 or more"));
  }
  if (request.min_tokens() < 0 || request.min_tokens() > request.max_tokens()) {
    return InvalidField("MIN_TOKENS", "min_tokens",
                        absl::StrCat(request.min_tokens(), " given, expected 0 to max_tokens, ",
                                     request.max_tokens()));
  }
  return CheckBeams(request);
}

absl::Status CheckTokenFields(const internal::v1::PrefillRequest& request, int vocab_size) {
  BATON_RETURN_IF_ERROR(CheckCommon(request, vocab_size));
  return CheckStopTokenIds("suppressed_token_ids", request.suppressed_token_ids(), vocab_size);
}

}  // namespace baton::worker
