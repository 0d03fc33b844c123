// The part of Membership that tells why.
#include <algorithm>
#include <utility>
#include <vector>

#include "router/fleet/membership.h"
#include "router/routing/decode_price.h"

namespace baton::router {

std::shared_ptr<Decision> Membership::Explain(const RouteQuery& query, const Route& route,
                                              const Pair& pair, absl::Span<const Candidate> prefill,
                                              absl::Span<const Candidate> decode) const {
  auto why = std::make_shared<Decision>();
  why->prompt_tokens = query.prompt_tokens;
  why->prefill = route.prefill.worker;
  why->decode = route.decode.worker;
  why->prefill_address = route.prefill.address;
  why->decode_address = route.decode.address;
  why->label = pair.decision;
  why->policy = policy_.name();
  if (pair.prefill) why->kappa = pair.pricing.Price(*pair.prefill);
  why->prefill_candidates = static_cast<int>(prefill.size());
  why->decode_candidates = static_cast<int>(decode.size());
  const auto cached = [&query](const Candidate& c) {
    return std::min(query.prompt_tokens, c.matched_blocks * query.block_tokens);
  };
  why->predicted_cached_tokens = cached(pair.computes());
  why->predicted_ttft_seconds = absl::ToDoubleSeconds(route.predicted_ttft);
  const auto tell = [&](absl::Span<const Candidate> candidates, int chosen, bool computes) {
    mutex_.AssertHeld();
    const auto cost = [&](const Candidate& c) {
      mutex_.AssertHeld();
      if (workers_[c.worker].role == v1::WORKER_ROLE_DECODE) {
        return PriceDecode(query, c, /*alone=*/computes).total();
      }
      return pair.pricing.Cost(c);
    };
    // The cheapest by cost; the chosen one is told whatever it costs, in its place.
    std::vector<std::pair<double, int>> told;
    const auto take = [&](int i) {
      const std::pair<double, int> entry = {cost(candidates[i]), i};
      told.insert(std::upper_bound(told.begin(), told.end(), entry), entry);
    };
    int chosen_at = -1;
    for (int i = 0; i < static_cast<int>(candidates.size()); ++i) {
      if (candidates[i].worker == chosen) {
        chosen_at = i;
        continue;
      }
      const bool full = static_cast<int>(told.size()) == kMaxTellableCandidates - 1;
      if (full && cost(candidates[i]) >= told.back().first) continue;
      if (full) told.pop_back();
      take(i);
    }
    if (chosen_at >= 0) take(chosen_at);
    for (const auto& [unused, i] : told) {
      const Candidate& c = candidates[i];
      DecisionCandidate& telling = why->candidates.emplace_back();
      telling.worker = c.worker;
      telling.role = workers_[c.worker].role;
      telling.address = workers_[c.worker].address;
      telling.cached_tokens = cached(c);
      telling.queue_seconds = c.queue_s;
      telling.service_seconds =
          computes ? c.service_s : DecodeStepSeconds(c, 1, query.prompt_tokens);
      telling.cost = cost(c);
      if (!computes && c.free_blocks < query.prompt_blocks - c.matched_blocks) {
        telling.excluded = "no room";
      } else if (!health_.WorkerUsable(c.worker)) {
        telling.excluded = "failed lately";
      }
    }
  };
  tell(prefill, route.prefill.worker, /*computes=*/true);
  tell(decode, route.decode.worker, /*computes=*/!pair.prefill.has_value());
  return why;
}

}  // namespace baton::router
