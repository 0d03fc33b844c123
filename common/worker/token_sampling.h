// Converts sampling parameters and sampled tokens between the proto files and common/model, and
// checks the fields that a DecodeRequest and a PrefillRequest have in common.
#ifndef BATON_COMMON_WORKER_TOKEN_SAMPLING_H_
#define BATON_COMMON_WORKER_TOKEN_SAMPLING_H_

#include <vector>

#include "absl/status/status.h"
#include "baton/internal/v1/decode.pb.h"
#include "baton/internal/v1/prefill.pb.h"
#include "baton/v1/inference.pb.h"
#include "common/model/sampler.h"
#include "common/worker/request_tokens.h"

namespace baton::worker {

// Does not check ranges. A repetition_penalty of 0, which means an absent one, becomes 1.
model::SamplingParams FromProto(const internal::v1::TokenSampling& sampling);
internal::v1::TokenSampling ToProto(const model::SamplingParams& params);

// Converts tokens with their log probabilities and the most probable alternatives.
v1::TokenLogprobs ToProto(const model::SampledToken& token);
std::vector<v1::TokenLogprobs> ToProto(const std::vector<model::SampledToken>& tokens);

// Checks tokens, prompt_tokens, sampling, stop and suppressed token ids, prompt_logprobs, priority,
// retention, tenant and, of a DecodeRequest, max_tokens, min_tokens, n and beams against the limits
// of common/base/request_limits.h, with its errors. Of a DecodeRequest, only one of `tokens` and
// `fixed_tokens` may be given. The number of tokens is not checked.
absl::Status CheckTokenFields(const internal::v1::DecodeRequest& request, int vocab_size);
absl::Status CheckTokenFields(const internal::v1::PrefillRequest& request, int vocab_size);

// Returns the number of prompt tokens of a checked request, where 0 means all of its tokens.
template <class Request>
int PromptTokens(const Request& request) {
  return request.prompt_tokens() > 0 ? request.prompt_tokens() : TokensOf(request).size();
}

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_TOKEN_SAMPLING_H_
