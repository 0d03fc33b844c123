#include "common/model/adjust_logits.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "common/base/check.h"

namespace baton::model {
namespace {

// Double arithmetic with one rounding at the end; a finite logit stays finite.
float Rounded(double logit) {
  return static_cast<float>(std::clamp(logit,
                                       static_cast<double>(std::numeric_limits<float>::lowest()),
                                       static_cast<double>(std::numeric_limits<float>::max())));
}

bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.frequency_penalty != 0 ||
         params.presence_penalty != 0;
}

void AddBias(const SamplingParams& params, absl::Span<float> logits) {
  for (const auto& [id, bias] : params.logit_bias) {
    if (static_cast<size_t>(id) >= logits.size()) continue;
    float& logit = logits[static_cast<size_t>(id)];
    if (!Masked(logit)) logit = Rounded(static_cast<double>(logit) + static_cast<double>(bias));
  }
}

// `count`: how often the answer has the token.
float Penalized(float raw, const SamplingParams& params, uint32_t count) {
  if (Masked(raw)) return raw;
  double logit = raw;
  if (logit > 0) {
    logit /= params.repetition_penalty;
  } else {
    logit *= params.repetition_penalty;
  }
  logit -= static_cast<double>(params.frequency_penalty) * count;
  if (count > 0) logit -= params.presence_penalty;
  return Rounded(logit);
}

void Penalize(const SamplingParams& params, const SamplingHistory& history,
              absl::Span<float> logits) {
  // Per id: 1 if it has been seen, and 2 for each time in the answer. All 0 between calls.
  thread_local std::vector<uint32_t> seen;
  seen.resize(std::max(seen.size(), logits.size()));
  const size_t prompt_tokens = static_cast<size_t>(history.prompt_tokens);
  const auto see = [&](int32_t token, uint32_t in_answer) {
    const auto id = static_cast<size_t>(token);
    if (id < logits.size()) seen[id] = (seen[id] | 1) + in_answer;
  };
  for (size_t i = 0; i < history.tokens.size(); ++i) {
    see(history.tokens[i], i < prompt_tokens ? 0 : 2);
  }
  for (const int32_t token : history.drafts) see(token, 2);
  for (const absl::Span<const int32_t> tokens : {history.tokens, history.drafts}) {
    for (const int32_t token : tokens) {
      const auto id = static_cast<size_t>(token);
      if (id >= logits.size() || seen[id] == 0) continue;
      logits[id] = Penalized(logits[id], params, seen[id] / 2);
      seen[id] = 0;
    }
  }
}

// One bit for each token; those without a bit are not allowed.
void Allow(absl::Span<const uint32_t> allowed, absl::Span<float> logits) {
  for (size_t id = 0; id < logits.size(); ++id) {
    const bool may = id / 32 < allowed.size() && (allowed[id / 32] >> (id % 32) & 1) != 0;
    if (!may) logits[id] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace

bool ChangesLogits(const SamplingParams& params, const SamplingHistory& history) {
  return !params.logit_bias.empty() || !history.suppressed.empty() || !history.allowed.empty() ||
         (HasPenalties(params) && !(history.tokens.empty() && history.drafts.empty()));
}

void AdjustLogits(const SamplingParams& params, const SamplingHistory& history,
                  absl::Span<float> logits) {
  BATON_CHECK_GE(history.prompt_tokens, 0);
  BATON_CHECK_LE(static_cast<size_t>(history.prompt_tokens), history.tokens.size());
  AddBias(params, logits);
  if (HasPenalties(params)) Penalize(params, history, logits);
  for (const int32_t id : history.suppressed) {
    if (static_cast<size_t>(id) >= logits.size()) continue;
    logits[static_cast<size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
  if (!history.allowed.empty()) Allow(history.allowed, logits);
}

}  // namespace baton::model
