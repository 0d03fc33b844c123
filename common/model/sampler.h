// Draws a token from logits. A pure function of its arguments: the same choice on every worker, in
// every batch, and after every resume.
#ifndef BATON_COMMON_MODEL_SAMPLER_H_
#define BATON_COMMON_MODEL_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton::model {

// Ranges: common/base/request_limits.h.
struct SamplingParams {
  float temperature = 1;  // 0: greedy, ties to the lowest id
  float top_p = 1;
  int top_k = 0;  // 0 or -1: no limit
  float min_p = 0;
  uint64_t seed = 0;
  uint32_t choice = 0;           // which of n parallel samples
  float repetition_penalty = 1;  // 1: none
  float frequency_penalty = 0;
  float presence_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // by id, each once
  // How many of the most probable tokens to report beside each token; nullopt: no log
  // probabilities.
  std::optional<int> logprobs = std::nullopt;

  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

// The tokens that the draw depends on besides the logits. Ids without a logit are ignored.
struct SamplingHistory {
  absl::Span<const int32_t> tokens = {};      // the prompt, then the answer so far
  int prompt_tokens = 0;                      // how many of `tokens` are the prompt's
  absl::Span<const int32_t> suppressed = {};  // never drawn now: stop tokens before min_tokens
  // Structured output: only tokens whose bit (i % 32 of word i / 32) is set are drawn. Empty: all.
  absl::Span<const uint32_t> allowed = {};
  absl::Span<const int32_t> drafts = {};  // more tokens of the answer, behind `tokens`
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0;

  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

struct SampledToken {
  int32_t token_id = 0;
  // Log probability in the model's own distribution, before bias, penalties, temperature and
  // filters; always finite. Set if SamplingParams.logprobs is.
  float logprob = 0;
  std::vector<TokenLogprob> top;  // the most probable, best first, ties by id
  // Set by BestTokens only: the log probability after bias, penalties and suppression.
  float score = 0;

  friend bool operator==(const SampledToken&, const SampledToken&) = default;
};

// INVALID_ARGUMENT, naming the field, if one is out of range or NaN.
absl::Status Validate(const SamplingParams& params);

// Changes the logits in this order: adds logit_bias; for tokens in the prompt or the answer,
// divides logits above 0 by the repetition penalty and multiplies the others by it (Keskar et al.,
// arXiv 1909.05858); for tokens in the answer, subtracts frequency_penalty times their count, and
// presence_penalty; sets suppressed tokens, and those that are not allowed, to -inf. Then applies
// temperature, top_k, top_p (the shortest prefix, by logit and then by id, whose share of what
// top_k left is at least top_p) and min_p (relative to the most probable token).
//
// position: index of the drawn token in the sequence, so a resumed request draws the same. The
// random number is the low half of Philox4x32-10 (Salmon et al., SC 2011) of key {seed} and counter
// {position, choice, 0}. -inf masks a token. INTERNAL (reason "NON_FINITE_LOGITS") if a logit is
// NaN or +inf, or all are -inf. INVALID_ARGUMENT ("NO_TOKEN_LEFT") if all finite ones are
// suppressed.
//
// Only the last few candidates are sorted: greedy and a top_k of up to 2048 are one pass over the V
// logits, the rest a few passes, expected O(V). The logits are copied only if they are to be
// changed. Thread-safe.
absl::StatusOr<SampledToken> Sample(absl::Span<const float> logits, const SamplingParams& params,
                                    const SamplingHistory& history, uint64_t position);

// Returns `draws` tokens: the results of Sample for params.choice, params.choice + 1, …. Shared
// work is done once.
absl::StatusOr<std::vector<SampledToken>> SampleMany(absl::Span<const float> logits,
                                                     const SamplingParams& params,
                                                     const SamplingHistory& history,
                                                     uint64_t position, int draws);

// For beam search. Returns the `count` most probable tokens (fewer if fewer are left), best first,
// ties by id, with their scores; ignores temperature and filters. Fails as Sample does.
absl::StatusOr<std::vector<SampledToken>> BestTokens(absl::Span<const float> logits,
                                                     const SamplingParams& params,
                                                     const SamplingHistory& history, int count);

// The log probability of a token that was not drawn, such as a prompt's, and the `top` most
// probable. INTERNAL ("NON_FINITE_LOGITS") as above.
absl::StatusOr<SampledToken> LogprobsOf(absl::Span<const float> logits, int32_t token_id, int top);
// The same for several tokens of one row, without alternatives.
absl::StatusOr<std::vector<float>> LogprobsOf(absl::Span<const float> logits,
                                              absl::Span<const int32_t> token_ids);

// The errors above, for draws on a device. token_id is the first whose logit is NaN or +inf; -1 if
// all are -inf.
absl::Status NonFiniteLogits(int32_t token_id, float logit);
absl::Status NoTokenLeft(size_t suppressed);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_SAMPLER_H_
