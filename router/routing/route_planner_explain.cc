// The part of RoutePlanner that records why a pair was chosen.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "router/routing/decode_price.h"
#include "router/routing/route_planner.h"

namespace baton::router {
namespace {

int CachedTokens(const RouteQuery& query, const Candidate& c) {
  return std::min(query.prompt_tokens, c.matched_blocks * query.block_tokens);
}

}  // namespace

std::shared_ptr<Decision> RoutePlanner::Explain(const RouteQuery& query, const Route& route,
                                                const Pair& pair,
                                                absl::Span<const Candidate> prefill,
                                                absl::Span<const Candidate> decode) const {
  auto why = std::make_shared<Decision>();
  why->prompt_tokens = query.prompt_tokens;
  const bool alone = pair.prefill_alone();
  const WorkerTarget& computes = alone ? route.decode : route.prefill;
  why->prefill = computes.worker;
  why->decode = alone ? kNoWorker : route.decode.worker;
  why->prefill_address = computes.address;
  if (!alone) why->decode_address = route.decode.address;
  why->label = pair.decision;
  why->policy = policy_.name();
  if (pair.prefill) why->kappa = pair.pricing.Price(*pair.prefill);
  why->prefill_candidates = static_cast<int>(prefill.size());
  why->decode_candidates = static_cast<int>(decode.size());
  // What it loads before it begins is in its cache by then.
  why->predicted_cached_tokens =
      CachedTokens(query, pair.computes()) + pair.computes().tier_blocks * query.block_tokens;
  why->predicted_ttft_seconds = absl::ToDoubleSeconds(route.predicted_ttft);
  why->spilled = route.spilled;
  const bool decode_computes = !pair.prefill.has_value();
  ExplainCandidates(query, pair, prefill, why->prefill, /*computes=*/true, why.get());
  ExplainCandidates(query, pair, decode, why->decode, decode_computes, why.get());
  return why;
}

std::optional<absl::Duration> RoutePlanner::PrefillTime(int worker, int tokens,
                                                        int cached_tokens) const {
  absl::MutexLock lock(&mutex_);
  const std::optional<LinearCost> cost = fleet_.PrefillCost(worker);
  if (!cost) return std::nullopt;
  return absl::Seconds(cost->Prefill(tokens, cached_tokens));
}

// Adds the cheapest candidates of one role, in order of their cost, the chosen one always among
// them. `computes`: they would compute the prompt.
void RoutePlanner::ExplainCandidates(const RouteQuery& query, const Pair& pair,
                                     absl::Span<const Candidate> candidates, int chosen,
                                     bool computes, Decision* why) const {
  const bool decode =
      !candidates.empty() && workers_[candidates[0].worker].role == v1::WORKER_ROLE_DECODE;
  const Candidate* prefill = pair.prefill ? &*pair.prefill : nullptr;
  const bool moves = query.links != nullptr && prefill != nullptr && !pair.prefill_alone();
  std::optional<KvMove> to_chosen;
  if (moves && !decode) to_chosen.emplace(query, pair.decode);
  const auto cost = [&](const Candidate& c) {
    if (decode) return PriceDecode(query, c, /*alone=*/computes, prefill).total();
    return pair.pricing.Cost(c) + (to_chosen ? to_chosen->SecondsFrom(c.worker, pair.hidden_s) : 0);
  };
  std::vector<std::pair<double, const Candidate*>> cheapest;
  const auto insert = [&](const Candidate& c, double price) {
    const std::pair<double, const Candidate*> entry = {price, &c};
    cheapest.insert(std::upper_bound(cheapest.begin(), cheapest.end(), entry), entry);
  };
  const Candidate* the_chosen = nullptr;
  for (const Candidate& c : candidates) {
    if (c.worker == chosen) {
      the_chosen = &c;
      continue;
    }
    const bool full = static_cast<int>(cheapest.size()) == kMaxExplainedCandidates - 1;
    const double price = cost(c);
    if (full && price >= cheapest.back().first) continue;
    if (full) cheapest.pop_back();
    insert(c, price);
  }
  if (the_chosen != nullptr) insert(*the_chosen, cost(*the_chosen));
  for (const auto& [price, candidate] : cheapest) {
    const Candidate& c = *candidate;
    DecisionCandidate& explained = why->candidates.emplace_back();
    explained.worker = c.worker;
    explained.role = workers_[c.worker].role;
    explained.address = workers_[c.worker].target.address;
    explained.pool = pools_.name(workers_[c.worker].pool);
    explained.cached_tokens = CachedTokens(query, c);
    explained.tier_tokens = c.tier_blocks * query.block_tokens;
    explained.queue_seconds = c.wait_s();
    explained.service_seconds =
        computes ? c.computing_s() : DecodeStepSeconds(c, 1, query.prompt_tokens);
    if (to_chosen) explained.transfer_seconds = to_chosen->SecondsFrom(c.worker, pair.hidden_s);
    if (moves && decode) explained.transfer_seconds = KvMove(query, c).SecondsFrom(*prefill);
    explained.cost = price;
    if (!computes && c.free_blocks < query.prompt_blocks - c.matched_blocks) {
      explained.excluded = "no room";
    } else if (!health_.WorkerUsable(c.worker)) {
      explained.excluded = "failed lately";
    }
  }
}

}  // namespace baton::router
