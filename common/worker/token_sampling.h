// Sampling parameters and sampled tokens between the proto files and the model room, and the checks
// of what a DecodeRequest and a PrefillRequest have in common.
#ifndef BATON_COMMON_WORKER_TOKEN_SAMPLING_H_
#define BATON_COMMON_WORKER_TOKEN_SAMPLING_H_

#include <vector>

#include "absl/status/status.h"
#include "baton/internal/v1/decode.pb.h"
#include "baton/internal/v1/prefill.pb.h"
#include "baton/v1/inference.pb.h"
#include "common/model/sampler.h"

namespace baton::worker {

// As they are, out of range or not; a repetition_penalty of 0, which is an absent one, becomes 1.
model::SamplingParams FromProto(const internal::v1::TokenSampling& sampling);
internal::v1::TokenSampling ToProto(const model::SamplingParams& params);

// The token with its log probability and the most probable ones.
v1::TokenLogprobs ToProto(const model::SampledToken& token);
std::vector<v1::TokenLogprobs> ToProto(const std::vector<model::SampledToken>& tokens);

// Checks tokens, prompt_tokens, sampling, stop and suppressed token ids, prompt_logprobs, priority,
// tenant and, of a DecodeRequest, max_tokens, min_tokens, n and beams against the limits of
// common/base/request_limits.h, with its errors. The length of `tokens` is not checked.
absl::Status CheckTokenFields(const internal::v1::DecodeRequest& request, int vocab_size);
absl::Status CheckTokenFields(const internal::v1::PrefillRequest& request, int vocab_size);

// Of a checked request: 0 means all of its tokens.
template <class Request>
int PromptTokens(const Request& request) {
  return request.prompt_tokens() > 0 ? request.prompt_tokens() : request.tokens_size();
}

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_TOKEN_SAMPLING_H_
