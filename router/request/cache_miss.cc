#include "router/request/cache_miss.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "router/metrics.h"
#include "router/request/prompt_history.h"
#include "router/routing/route_planner.h"

namespace baton::router {
namespace {

PromptChain ChainOf(const PreparedRequest& prepared) {
  return {prepared.decode.tenant(), prepared.root, prepared.block_tokens, prepared.decode.tokens(),
          prepared.keys};
}

// The time to compute the lost tokens, as the last of those that were not cached. 0: unknown.
absl::Duration LostTime(const RouterParts& parts, const PreparedRequest& prepared,
                        const Route& route, int cached_tokens, int lost_tokens) {
  const int computed = prepared.decode.tokens_size() - cached_tokens;
  const auto took = parts.planner.PrefillTime(route.computes.worker, computed, cached_tokens);
  const auto without = parts.planner.PrefillTime(route.computes.worker, computed - lost_tokens,
                                                 cached_tokens + lost_tokens);
  return took && without ? std::max(absl::ZeroDuration(), *took - *without) : absl::Duration();
}

std::string TextOf(const tokenizer::Tokenizer& tokenizer, const std::vector<int32_t>& tokens) {
  return tokenizer.Decode(tokens, /*skip_special_tokens=*/false).value_or("");
}

v1::CacheMiss Show(const RouterParts& parts, const PromptMiss& miss, absl::Duration lost) {
  v1::CacheMiss shown;
  shown.set_cause(miss.cause);
  shown.set_lost_tokens(miss.lost_tokens);
  shown.set_lost_ms(absl::ToDoubleMilliseconds(lost));
  shown.set_earlier_request_id(miss.earlier_request_id);
  if (miss.cause == v1::CACHE_MISS_CAUSE_CHANGED) {
    shown.set_first_different_token(miss.first_different_token);
    shown.set_text(TextOf(parts.tokenizer, miss.shown));
    shown.set_earlier_text(TextOf(parts.tokenizer, miss.earlier_shown));
  }
  return shown;
}

}  // namespace

std::optional<v1::CacheMiss> ExplainCacheMiss(const RouterParts& parts,
                                              const PreparedRequest& prepared, const Route& route,
                                              int cached_tokens) {
  const std::optional<PromptMiss> miss = parts.prompts.Explain(ChainOf(prepared), cached_tokens);
  if (!miss) return std::nullopt;
  return Show(parts, *miss, LostTime(parts, prepared, route, cached_tokens, miss->lost_tokens));
}

std::optional<v1::CacheMiss> RecordCached(RouterParts& parts, const PreparedRequest& prepared,
                                          const Route& route, int cached_tokens) {
  // Such a prompt is computed whole on purpose.
  if (prepared.decode.has_prompt_logprobs()) return std::nullopt;
  std::optional<v1::CacheMiss> shown;
  if (const auto miss = parts.prompts.Explain(ChainOf(prepared), cached_tokens)) {
    const absl::Duration lost = LostTime(parts, prepared, route, cached_tokens, miss->lost_tokens);
    if (miss->lost_tokens >= prepared.block_tokens) parts.metrics.CacheMissed(miss->cause, lost);
    if (prepared.explain_cache) shown = Show(parts, *miss, lost);
  }
  return shown;
}

void RememberPrompt(RouterParts& parts, const PreparedRequest& prepared) {
  if (prepared.decode.has_prompt_logprobs()) return;
  parts.prompts.Add(ChainOf(prepared), prepared.decode.request_id());
}

void RememberPrompt(RouterParts& parts, PreparedRequest&& prepared) {
  if (prepared.decode.has_prompt_logprobs()) return;
  parts.prompts.Add(prepared.decode.tenant(), prepared.root, prepared.block_tokens,
                    std::move(*prepared.decode.mutable_tokens()), std::move(prepared.keys),
                    prepared.decode.request_id());
}

}  // namespace baton::router
